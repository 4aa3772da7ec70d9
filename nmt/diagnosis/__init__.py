"""What is wrong with a model: the troubleshooting list of the tutorials, run as checks on a fresh or trained one."""
