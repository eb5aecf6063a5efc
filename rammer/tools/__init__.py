"""Tools on top of the public interface: the demo, tables of measured times."""
