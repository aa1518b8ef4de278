//! `wheellock fence`: writes that a stale holder cannot do.

use std::error::Error;
use std::io::{self, Read as _};

use wheellock_fence::{FenceError, file, sql};

use crate::arguments::{Fence, FenceFile, FenceSql};
use crate::exit;
use crate::output::{complain, printable, say};

/// Does what was asked, and returns the exit code.
pub(crate) fn fence(fence: &Fence) -> Result<u8, Box<dyn Error>> {
    match fence {
        Fence::File(arguments) => replace_file(arguments),
        Fence::Sql(arguments) => print_sql(arguments),
    }
}

/// Replaces a file by the standard input.
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

/// Prints a statement of SQL.
fn print_sql(arguments: &FenceSql) -> Result<u8, Box<dyn Error>> {
    let statement = match (&arguments.resource, arguments.token) {
        _ if arguments.create => sql::CREATE_TABLE.to_owned(),
        (Some(resource), Some(token)) => {
            // The token first: a name may hold what looks like a parameter.
            let resource = format!("'{}'", resource.replace('\'', "''"));
            sql::RAISE.replace("$2", &token.to_string()).replace("$1", &resource)
        }
        // The command line demands both.
        _ => return Err("the resource and the token are missing".into()),
    };
    say(&format!("{statement};"))?;
    Ok(exit::SUCCESS)
}
