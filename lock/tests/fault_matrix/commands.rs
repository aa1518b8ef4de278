//! Whether every command of the library has a row, judged by its source and the server's own list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use wheellock_fixture::{Reply, Sentinels};

use crate::operations;
use crate::sends::{SCRIPTS, Sends};

/// Words that a server knows as commands, and which no call sends as such.
const NOT_SENT: [&str; 7] = [
    // By their hash or whole, in the rows of the scripts.
    "EVAL", "EVALSHA", // In scripts.
    "PUBLISH", "SPUBLISH", // An error.
    "READONLY", // The name of a connection: a refusal has no effect.
    "CLIENT",   // In place of `WAIT`, whose row it shares.
    "WAITAOF",
];

/// What several scripts begin with.
const PART: &str = "recognize";

#[test]
fn every_command_in_the_librarys_source_has_a_row() {
    let sentinels = Sentinels::builder().replicas(0).sentinels(1).start();
    let servers = [&sentinels.servers()[0], &sentinels.sentinels()[0]];
    let is_command = |word: &str| {
        servers.iter().any(|server| {
            let known = server.command(&["COMMAND", "INFO", word]);
            matches!(&known, Reply::Array(commands) if commands.iter().any(|one| *one != Reply::Nil))
        })
    };
    let rows: BTreeSet<&str> = operations::all()
        .iter()
        .filter_map(|row| match row.sends {
            Sends::Command(words) => words.split(' ').next(),
            Sends::Script(_) => None,
        })
        .collect();
    let mut missing = BTreeMap::new();
    for (file, source) in sources("rs") {
        for word in words(&source) {
            if is_command(word) && !rows.contains(word) && !NOT_SENT.contains(&word) {
                missing.insert(word.to_owned(), file.clone());
            }
        }
    }
    assert!(missing.is_empty(), "there is no row for {missing:?}");
}

#[test]
fn every_script_of_the_library_has_a_row() {
    let all = operations::all();
    for (name, source) in sources("lua") {
        if name == PART {
            continue;
        }
        let sends = |sends| matches!(sends, Sends::Script(script) if script == name);
        assert!(all.iter().any(|row| sends(row.sends)), "no row sends {name}");
        let is_sent = |(known, text): &(&str, &str)| *known == name && text.ends_with(&source);
        assert!(SCRIPTS.iter().any(is_sent), "{name}");
    }
}

/// The names and texts of the files that may hold what is sent, without their tests.
fn sources(extension: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // Scripts may be anywhere. Commands are only written where the servers are known.
    let mut folders = if extension == "lua" {
        vec![root]
    } else {
        vec![root.join("ops"), root.join("store/redis")]
    };
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(folder).unwrap() {
            let file = file.unwrap().path();
            if file.ends_with("src/testing") {
                // Models of the library.
            } else if file.is_dir() {
                folders.push(file);
            } else if file.extension().is_some_and(|its| its == extension) {
                let text = fs::read_to_string(&file).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let name = file.file_stem().unwrap().to_string_lossy().into_owned();
                found.push((name, code.to_owned()));
            }
        }
    }
    assert!(!found.is_empty(), "there is no file *.{extension}");
    found
}

/// Texts of capital letters alone.
fn words(source: &str) -> impl Iterator<Item = &str> {
    let is_word =
        |text: &&str| !text.is_empty() && text.chars().all(|sign| sign.is_ascii_uppercase());
    source.split('"').filter(is_word)
}
