//! The manual pages and the shell completions, generated from the definition of the arguments.

use std::error::Error;
use std::io::{self, Write as _};

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::exit;

/// Writes the completions for a shell.
pub(crate) fn completions(shell: Shell) -> Result<u8, Box<dyn Error>> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "wheellock", &mut text);
    write(&text)
}

/// Writes the manual page of the subcommand `of`, or of `wheellock`. An error if there is no such
/// subcommand.
pub(crate) fn page(of: Option<&str>) -> Result<u8, Box<dyn Error>> {
    let mut command = Arguments::command();
    command.build();
    let mut title = "wheellock".to_owned();
    if let Some(name) = of {
        let Some(found) = command.find_subcommand(name) else {
            return Err(format!("there is no command {name}").into());
        };
        title = format!("wheellock-{name}");
        command = found.clone();
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).title(title).render(&mut text)?;
    write(&text)
}

fn write(text: &[u8]) -> Result<u8, Box<dyn Error>> {
    let mut output = io::stdout().lock();
    output.write_all(text)?;
    output.flush()?;
    Ok(exit::SUCCESS)
}
