"""From logits to tokens: what a request asked for, its rules, and the draw."""
