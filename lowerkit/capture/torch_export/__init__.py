"""The front end of torch.export: modules, exported programs and ``.pt2`` files."""
