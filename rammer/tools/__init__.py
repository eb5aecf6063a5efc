"""Use the public interface: the demo, and tables of measured times."""
