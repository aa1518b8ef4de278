//! The structure of the source: in which direction folders import, and what no file may contain.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

/// The folders and single files of a folder, from the bottom up. Each imports only from those
/// before it. Files within one of them import each other freely.
struct Layers {
    root: &'static str,
    /// How a path into this folder begins.
    prefix: &'static str,
    order: &'static [&'static str],
}

const LAYERS: &[Layers] = &[
    Layers {
        root: "src",
        prefix: "crate::",
        order: &[
            "error", "guide", "model", "events", "ops", "hold", "store", "ledger", "watchdog",
            "waits", "core", "admin", "locks", "recipes", "client", "doctor", "testing", "lib",
        ],
    },
    Layers {
        root: "src/store/redis",
        prefix: "crate::store::redis::",
        order: &["address", "resp", "net", "sentinel", "node", "cluster", "mod"],
    },
    Layers {
        root: "../wheel/src",
        prefix: "crate::",
        order: &["error", "wheel", "time", "stats", "driver", "timer", "guide", "lib"],
    },
];

/// Some line of code in a source file.
struct Line {
    path: PathBuf,
    number: usize,
    code: String,
}

/// The lines below a folder, without comments and unit tests.
fn lines(folder: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            lines.extend(self::lines(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().take_while(|line| *line != "mod tests {").enumerate();
            lines.extend(code.filter(|(_, line)| !line.trim_start().starts_with("//")).map(
                |(number, line)| Line {
                    path: path.clone(),
                    number: number + 1,
                    code: line.to_owned(),
                },
            ));
        }
    }
    lines
}

fn source(root: &str) -> Vec<Line> {
    lines(&Path::new(env!("CARGO_MANIFEST_DIR")).join(root))
}

/// The name of the folder or file of `layers` that contains the path.
fn layer(layers: &Layers, path: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(layers.root);
    let first = path.strip_prefix(root).unwrap().components().next().unwrap();
    Path::new(first.as_os_str()).file_stem().unwrap().to_string_lossy().into_owned()
}

/// The layers that a line of code names.
fn named(layers: &Layers, code: &str) -> Vec<String> {
    let paths = code.split(layers.prefix).skip(1);
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    paths.map(|path| path.chars().take_while(|letter| is_letter(*letter)).collect()).collect()
}

/// What takes the place of the standard library's locks, threads and sockets where a test runs in
/// many orders of its threads. Folders below name it, under that cfg.
const STAND_INS: &str = "crate::testing::modelled::";

/// What is wrong with a line of code in this layer.
fn fault(layers: &Layers, layer: &str, code: &str) -> Option<String> {
    // Paths that the loop below does not read.
    if layer != "lib" && (code.contains("crate::{") || code.contains("super::super")) {
        return Some("write each path from `crate::`, on a line of its own".to_owned());
    }
    let height = |name: &str| layers.order.iter().position(|other| *other == name);
    let own = height(layer)?;
    named(layers, &code.replace(STAND_INS, ""))
        .into_iter()
        .find(|name| height(name).is_some_and(|other| other > own))
        .map(|name| format!("`{layer}` is below `{name}`"))
}

#[test]
fn folders_import_only_from_those_below_them() {
    let mut faults = Vec::new();
    for layers in LAYERS {
        for Line { path, number, code } in source(layers.root) {
            let layer = layer(layers, &path);
            assert!(layers.order.contains(&&*layer), "{layer} has no place in the order");
            if let Some(fault) = fault(layers, &layer, &code) {
                faults.push(format!("{}:{number}: {}: {fault}", path.display(), code.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_import_from_above_is_found() {
    let of_lock = &LAYERS[0];
    assert!(fault(of_lock, "hold", "use crate::ops::value::Value;").is_none());
    assert!(fault(of_lock, "lib", "pub use crate::{client::Client, error::Error};").is_none());
    for code in [
        "use crate::store::Store;",
        "    let core = crate::model::name::of(crate::client::Client);",
        "use crate::{error::Error, client::Client};",
        "use super::super::client::Client;",
    ] {
        assert!(fault(of_lock, "hold", code).is_some(), "{code}");
    }
    assert!(fault(&LAYERS[1], "net", "use crate::store::redis::node::node::Node;").is_some());
}

#[test]
fn only_one_folder_names_the_redis_crate() {
    for Line { path, number, code } in source("src") {
        // The signature of `ClientBuilder::connection`.
        let is_signature = path.ends_with("client/builder.rs") && code.contains("impl redis::");
        let is_there = path.ends_with("store/mod.rs")
            || path.components().any(|part| part.as_os_str() == "redis")
            || is_signature;
        let is_named = code.contains("use redis::") || code.contains(" redis::");
        assert!(is_there || !is_named, "{}:{number}: {code}", path.display());
    }
}

/// A fork copies statics in whatever state they are. A child that meets a static that another
/// thread was filling waits forever.
#[test]
fn statics_are_complete_from_the_start_and_locks_share_no_table() {
    for Line { path, number, code } in source("src") {
        // Only tests have this file, and they fork nothing.
        if path.ends_with("modelled/process.rs") {
            continue;
        }
        let is_filled_late = code.contains("LazyLock")
            || code.contains("thread_local!")
            || code.contains("static ") && code.contains("Once");
        let has_table = code.contains("parking_lot");
        assert!(!is_filled_late && !has_table, "{}:{number}: {code}", path.display());
    }
}

#[test]
fn scripts_that_compute_names_of_keys_tell_it_to_dragonfly() {
    let mut flagged = 0;
    for entry in fs::read_dir("src/ops/scripts").unwrap() {
        let path = entry.unwrap().path();
        let script = fs::read_to_string(&path).unwrap();
        // The only keys whose names are not given: those of a reader's levels.
        let mut code = script.lines().filter(|line| !line.trim_start().starts_with("--"));
        let computes = code.any(|line| line.contains(":rwlock_timeout:"));
        let is_flagged = script.starts_with("--!df flags=allow-undeclared-keys\n");
        assert_eq!(computes, is_flagged, "{}", path.display());
        flagged += usize::from(is_flagged);
    }
    assert!(flagged > 0);
}
