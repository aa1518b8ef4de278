//! The default label of a client.

use std::env;
use std::path::Path;
use std::process;
use std::sync::Arc;

/// Makes a label of the program's name, the host, and the process id: `backup, db3:4711`.
pub(crate) fn default_label() -> Arc<str> {
    let program = env::args_os().next();
    let program = program.as_deref().and_then(|path| Path::new(path).file_name());
    let program = program.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Arc::from(format!("{}, {}:{}", shortened(&program), host(), process::id()))
}

/// Returns the name of this machine, shortened.
pub(crate) fn host() -> String {
    shortened(&system_host())
}

/// Returns the name of this machine as the kernel reports.
#[cfg(target_os = "linux")]
fn system_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the name of this machine by the environment, or `localhost`.
#[cfg(not(target_os = "linux"))]
fn system_host() -> String {
    let name = ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(env::var_os);
    name.map_or_else(|| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns the first 64 characters, without control characters, which would disturb a terminal.
fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(64).collect()
}
