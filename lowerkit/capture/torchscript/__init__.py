"""The front end of TorchScript: its program runs while ``torch.export`` traces."""
