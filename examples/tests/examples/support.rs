//! Runs an example as a process.

#![expect(clippy::panic, reason = "a test that cannot run fails, and says why")]

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Much longer than any program here runs, so that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A command that runs the example `name`, without the settings of this process.
pub(crate) fn example<A: AsRef<str>>(name: &str, arguments: &[A]) -> Command {
    let program = program(name);
    assert!(
        program.is_file(),
        "the example {name} is not built; build it with\n\n    cargo build --examples\n\n\
         and the features that `examples/Cargo.toml` requires for the example"
    );
    let mut command = Command::new(program);
    command.args(arguments.iter().map(AsRef::as_ref));
    command.env_remove("REDIS_URL").env_remove("DATABASE_URL");
    command
}

/// Cargo builds tests into the folder `deps`, and examples into its neighbour.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe()
        .unwrap_or_else(|error| panic!("the path of this test is unknown: {error}"));
    let built = test.ancestors().nth(2).map(PathBuf::from).unwrap_or_default();
    built.join("examples").join(name).with_extension(env::consts::EXE_EXTENSION)
}
