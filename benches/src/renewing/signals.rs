//! What a measuring process and the report tell each other: `ready` on one side, a line on the other.

use std::io::{self, Write};

/// The line that says that everything is held.
pub(crate) const READY: &str = "ready";

/// Tells the report that everything is held, and waits until it says to go on.
pub(crate) fn ready_and_wait() {
    let mut output = io::stdout();
    writeln!(output, "{READY}").expect("the report reads");
    output.flush().expect("the report reads");
    let mut line = String::new();
    let length = io::stdin().read_line(&mut line).expect("the report writes");
    assert!(length > 0, "the report has ended");
}
