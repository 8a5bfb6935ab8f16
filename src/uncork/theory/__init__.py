"""theory: the numbers and facts behind the bottleneck, computed. Import the module you need."""
