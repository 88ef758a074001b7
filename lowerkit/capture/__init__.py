"""Front ends: from torch.export, TorchScript, ONNX and factories to a Program."""
