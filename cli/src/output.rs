//! Output to the terminal.

use std::io::{self, Write as _};

/// Writes lines to the standard output. A closed pipe is an error, not a panic.
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

/// Escapes the control characters of a name, for a single line of output.
pub(crate) fn printable(name: &str) -> String {
    let shown = |letter: char| {
        if letter.is_control() { letter.escape_default().collect() } else { String::from(letter) }
    };
    name.chars().map(shown).collect()
}

/// Escapes the control characters of a name, and cuts a long name, for a message.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN: usize = 80;
    if name.chars().count() <= SHOWN {
        return printable(name);
    }
    let beginning: String = name.chars().take(SHOWN).collect();
    format!("{}… ({} bytes)", printable(&beginning), name.len())
}

/// Whether nobody reads the standard output any more.
pub(crate) fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
