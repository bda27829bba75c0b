"""From a recording to machine code, and a loop around it: what is entered of Inductor, and C++ of our own."""
