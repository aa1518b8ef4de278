//! What goes to the terminal.

use std::io::{self, Write as _};

/// Writes lines to the standard output. A reader that is gone is an error, not a panic.
pub(crate) fn say(lines: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{lines}")?;
    output.flush()
}

/// Writes a line to the standard error.
pub(crate) fn complain(line: &str) {
    // A failure cannot be reported anywhere.
    writeln!(io::stderr(), "wheellock: {line}").ok();
}

/// A name as a part of one line: control characters are escaped.
pub(crate) fn printable(name: &str) -> String {
    let shown = |letter: char| {
        if letter.is_control() { letter.escape_default().collect() } else { String::from(letter) }
    };
    name.chars().map(shown).collect()
}

/// A name as a part of a message: control characters are escaped, and a long one is cut short.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN: usize = 80;
    if name.chars().count() <= SHOWN {
        return printable(name);
    }
    let beginning: String = name.chars().take(SHOWN).collect();
    format!("{}… ({} bytes)", printable(&beginning), name.len())
}

/// Whether nobody reads the standard output any more.
pub(crate) fn is_unread(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
