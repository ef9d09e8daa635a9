"""Tools of the repository itself: what makes files that are committed. No part of the product."""
