//! `wheellock`: runs a command under a distributed lock on Redis or Valkey.
//!
//! README.md is the manual. The folder `run` has the subcommand `run`, which consists of three
//! processes: the holder of the lock, the command, and the guardian.

#[cfg(not(unix))]
compile_error!("wheellock-cli needs the processes, signals and terminals of Unix");

mod arguments;
mod ask;
mod bench;
mod doctor;
mod exit;
mod fence;
mod graph;
mod jobs;
mod list;
mod manual;
mod output;
mod report;
mod run;
mod secrets;
#[cfg(feature = "serve")]
mod serve;
mod server;
mod status;
mod unlock;
mod watch;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Command};
use crate::output::complain;

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().collect();
    // `run` starts this program again for its processes. They have no options and start fast, so
    // nothing is parsed.
    match words.get(1).and_then(|word| word.to_str()) {
        Some(run::launch::WORD) => return run::launch::main(&words[2..]).into(),
        Some(run::guardian::WORD) => return run::guardian::main(&words[2..]).into(),
        _ => {}
    }
    ExitCode::from(front(&words))
}

fn front(words: &[OsString]) -> u8 {
    // Checked before the parser runs, as a message about wrong arguments may quote a password.
    if secrets::is_in_arguments(words) {
        complain(secrets::ADVICE);
        return exit::FAILED;
    }
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(misuse) => {
            let is_misuse = misuse.use_stderr();
            // A closed terminal does not change the exit code.
            misuse.print().ok();
            return if is_misuse { exit::FAILED } else { exit::SUCCESS };
        }
    };
    let outcome = match arguments.command {
        Command::Run(run) => run::run(run),
        Command::Status(status) => status::status(&status),
        Command::List(list) => list::list(&list),
        Command::Watch(watch) => watch::watch(&watch),
        Command::Graph(graph) => graph::graph(&graph),
        Command::Jobs(jobs) => jobs::jobs(&jobs),
        #[cfg(feature = "serve")]
        Command::Serve(serve) => serve::serve(serve),
        Command::Ask(ask) => ask::ask(&ask),
        Command::Fence(fence) => fence::fence(&fence.what),
        Command::Unlock(unlock) => unlock::unlock(&unlock),
        Command::Bench(bench) => bench::bench(&bench),
        Command::Doctor(doctor) => doctor::doctor(&doctor),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { command } => manual::page(command.as_deref()),
    };
    outcome.unwrap_or_else(|failure| {
        complain(&failure.to_string());
        exit::FAILED
    })
}
