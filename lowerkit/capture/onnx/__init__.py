"""The front end of ONNX: a model is checked, prepared and imported to the torch dialect."""
