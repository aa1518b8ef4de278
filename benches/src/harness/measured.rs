//! What a measuring process and its report exchange: `ready`, a line to go on, and a line of
//! numbers.

use std::io::{self, Write};

/// What was measured, each number with its name.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

/// The line that says that everything is prepared.
pub(crate) const READY: &str = "ready";
/// The lines at the begin and at the end of what is measured, where the report reads what others
/// have used.
pub(crate) const BEGUN: &str = "begun";
pub(crate) const OVER: &str = "over";

/// Tells the report that everything is prepared, and waits until it says to go on.
pub(crate) fn ready_and_wait() {
    tell(READY);
    let mut line = String::new();
    let length = io::stdin().read_line(&mut line).expect("the report writes");
    assert!(length > 0, "the report has ended");
}

/// Writes a line that the report waits for.
pub(crate) fn tell(word: &str) {
    let mut output = io::stdout();
    writeln!(output, "{word}").expect("the report reads");
    output.flush().expect("the report reads");
}

/// The numbers as the line that a report reads.
pub(crate) fn to_line(numbers: Numbers) -> String {
    let words: Vec<String> =
        numbers.into_iter().map(|(name, number)| format!("{name}={number:.6}")).collect();
    words.join(" ")
}
