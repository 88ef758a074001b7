"""``torch.compile(model, backend="lowerkit")``: graphs of TorchDynamo, compiled by lowerkit and run beside PyTorch."""
