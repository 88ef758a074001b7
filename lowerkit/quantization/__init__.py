"""Our own quantization: ranges from calibration data, explicit quantize and dequantize ops around products."""
