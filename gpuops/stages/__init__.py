"""One file per rule, each with its effect. A rule is pure; its effect is the only thing in it that touches the world."""
