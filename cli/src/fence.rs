//! `wheellock fence`: refuses the writes of stale holders.

use std::error::Error;
use std::io::{self, Read as _};

use wheellock_fence::{FenceError, file, sql};

use crate::arguments::{Fence, FenceFile, FenceSql, SqlProgram};
use crate::exit;
use crate::output::{complain, printable, say};

/// Runs the subcommand, and returns the exit code.
pub(crate) fn fence(fence: &Fence) -> Result<u8, Box<dyn Error>> {
    match fence {
        Fence::File(arguments) => replace_file(arguments),
        Fence::Sql(arguments) => print_sql(arguments),
    }
}

/// Replaces a file with the standard input.
fn replace_file(arguments: &FenceFile) -> Result<u8, Box<dyn Error>> {
    let mut content = Vec::new();
    io::stdin().lock().read_to_end(&mut content)?;
    let FenceFile { path, token, wait } = arguments;
    match file::replace(path, *token, &content, *wait) {
        Ok(()) => Ok(exit::SUCCESS),
        Err(FenceError::Stale(stale)) => {
            complain(&printable(&stale.to_string()));
            Ok(exit::LOST)
        }
        Err(error) => Err(printable(&format!("{}: {error}", path.display())).into()),
    }
}

/// Prints an SQL transaction, or the statement to create the table.
fn print_sql(arguments: &FenceSql) -> Result<u8, Box<dyn Error>> {
    let (Some(resource), Some(token)) = (&arguments.resource, arguments.token) else {
        // The command line requires both, except with `--create`.
        say(&format!("{};", sql::CREATE_TABLE))?;
        return Ok(exit::SUCCESS);
    };
    if resource.contains(['\\', '\0']) {
        return Err("the name of a resource has no backslash and no NUL".into());
    }
    // The whole input is read first, so that a failed read prints no part of a transaction.
    let changes = io::read_to_string(io::stdin())?;
    let stop = match arguments.program {
        SqlProgram::Psql => "\\set ON_ERROR_STOP on",
        SqlProgram::Sqlite3 => ".bail on",
    };
    // The token is inserted first, as a name may contain the text of a parameter.
    let resource = format!("'{}'", resource.replace('\'', "''"));
    let raise = sql::RAISE.replace("$2", &token.to_string()).replace("$1", &resource);
    say(&format!("{stop}\nBEGIN;\n{raise};\n{changes}\n;\nCOMMIT;"))?;
    Ok(exit::SUCCESS)
}
