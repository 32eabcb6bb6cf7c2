//! The command line of ragen.

fn main() {}
