"""Random ONNX nodes: what their operands and attributes may be; ``onnx_ops.py`` draws them."""
