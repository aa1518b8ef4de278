//! The order of the folders and files: each imports only what stands above it in the list.

use crate::source::{Import, Source, definitions, imports, inherent_impls, sources, tokens};

/// From the bottom up. The files of a folder are together, its `mod.rs` last.
const ORDER: &[&str] = &[
    "error",
    "wheel/rounds",
    "wheel/bit_set",
    "wheel/free_slots",
    "wheel/slab",
    "wheel/insert_buffer",
    "wheel/cancel_buffer",
    "wheel/list",
    "wheel/buckets",
    "wheel/later_rounds",
    "wheel",
    "time/sync",
    "time/permit",
    "time/clock",
    "time/tsc_clock",
    "time/manual_clock",
    "time/tick",
    "time",
    "stats/histogram",
    "stats/statistics",
    "stats/instance_count",
    "stats",
    "driver/panics",
    "driver/context",
    "driver/wakeup",
    "driver/capacity",
    "driver/shard",
    "driver/ticker",
    "driver/lifecycle",
    "driver/loom_tests",
    "driver",
    "timer/task",
    "timer/period",
    "timer/job",
    "timer/timeout",
    "timer/periodic",
    "timer/cancel_on_drop",
    "timer/weak_batch_timer",
    "timer/weak_timer",
    "timer/builder",
    "timer/batch_timer",
    "timer/hashed_wheel_timer",
    "timer/channels",
    "timer",
    "guide",
    "lib",
];

/// The folder of a module: that of its file.
fn folder(module: &str) -> &str {
    let is_folder = ORDER.iter().any(|other| other.starts_with(&format!("{module}/")));
    if is_folder { module } else { module.split_once('/').map_or("", |(folder, _)| folder) }
}

fn height(module: &str) -> usize {
    ORDER
        .iter()
        .position(|other| *other == module)
        .unwrap_or_else(|| panic!("{module} is not in the list: add it at its place"))
}

/// The module that a path in `module` leads to; `None` if it leads out of the crate or to a local
/// name.
fn target(module: &str, import: &Import) -> Option<String> {
    let mut path: Vec<&str> = if module == "lib" { vec![] } else { module.split('/').collect() };
    let own = path.len();
    path.extend(import.within.iter().map(String::as_str));
    let mut segments = import.segments.iter().map(String::as_str).peekable();
    let first = *segments.peek()?;
    match first {
        "crate" => {
            path.clear();
            segments.next();
        }
        "self" | "super" => {
            segments.next_if_eq(&"self");
            while segments.next_if_eq(&"super").is_some() {
                path.pop();
            }
        }
        // Relative to the module: a child of it, or a name from elsewhere.
        _ => {
            let child = [path.clone(), vec![first]].concat().join("/");
            if path.len() > own || !ORDER.contains(&child.as_str()) {
                return None;
            }
        }
    }
    // As deep as there are modules; the rest names an item.
    for segment in segments {
        let deeper = [path.clone(), vec![segment]].concat();
        if !ORDER.contains(&deeper.join("/").as_str()) {
            break;
        }
        path = deeper;
    }
    // An inline module belongs to its file.
    while !path.is_empty() && !ORDER.contains(&path.join("/").as_str()) {
        path.pop();
    }
    Some(if path.is_empty() { "lib".to_owned() } else { path.join("/") })
}

/// What is wrong with the imports of a file.
fn import_faults(module: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut faults: Vec<String> = imports(&tokens)
        .iter()
        .filter_map(|import| Some((target(module, import)?, import)))
        .filter(|(target, _)| target != module && height(target) >= height(module))
        .map(|(target, import)| {
            format!("{module} uses {target}, by {}", import.segments.join("::"))
        })
        .collect();
    // Both would bring in code that is not read here.
    let hidden = tokens.windows(2).any(|pair| pair[0] == "include" && pair[1] == "!")
        || tokens.windows(2).any(|pair| pair[0] == "[" && pair[1] == "path");
    faults.extend(hidden.then(|| format!("{module} has an include! or a #[path]")));
    faults
}

/// The inherent `impl` blocks that are outside of the folder of their type.
fn impl_faults(sources: &[Source]) -> Vec<String> {
    let tokens: Vec<(&str, Vec<String>)> =
        sources.iter().map(|source| (source.module.as_str(), tokens(&source.text))).collect();
    let is_defined_in = |name: &String, at: &str| {
        let mut files = tokens.iter().filter(|(module, _)| folder(module) == at);
        files.any(|(_, tokens)| definitions(tokens).contains(name))
    };
    let mut faults = Vec::new();
    for (module, tokens) in &tokens {
        for name in inherent_impls(tokens) {
            if !is_defined_in(&name, folder(module)) {
                faults.push(format!("{module} has an impl of {name}, a type of another folder"));
            }
        }
    }
    faults
}

#[test]
fn a_file_imports_only_what_stands_above_it() {
    let faults: Vec<String> =
        sources().iter().flat_map(|source| import_faults(&source.module, &source.text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_type_has_its_inherent_impls_in_its_folder() {
    let faults = impl_faults(&sources());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_list_names_every_file_and_no_other() {
    let mut listed: Vec<String> = ORDER.iter().map(ToString::to_string).collect();
    listed.sort();
    let files: Vec<String> = sources().into_iter().map(|source| source.module).collect();
    assert_eq!(files, listed);
}

#[test]
fn the_files_of_a_folder_stand_together_in_the_list() {
    let mut folders: Vec<&str> = ORDER.iter().map(|module| folder(module)).collect();
    folders.dedup();
    assert_eq!(folders, ["", "wheel", "time", "stats", "driver", "timer", ""]);
}

#[test]
fn every_file_says_its_idea_first_and_leaves_nothing_undone() {
    for Source { module, text } in sources() {
        assert!(text.starts_with("//! "), "{module} does not begin with its idea");
        for mark in ["FIXME", "TODO", "XXX", "HACK", "todo!", "unimplemented!"] {
            assert!(!text.contains(mark), "{module} still has a {mark}");
        }
        let long = text.lines().find(|line| line.contains("//") && line.chars().count() > 100);
        assert_eq!(long, None, "{module} has a comment of more than 100 columns");
    }
}

#[test]
fn the_rules_find_what_they_forbid() {
    for (module, text) in [
        ("driver/shard", "use crate::wheel::Key;"),
        ("driver/shard", "use super::wakeup::Wakeup;"),
        ("wheel/list", "use super::slab::{Links, Slab};"),
        ("wheel", "use self::slab::Slab; pub use slab::Key;"),
        ("driver/shard", "//! See crate::timer."),
        ("driver/shard", "const TEXT: &str = \"crate::timer\";"),
        ("driver/shard", "mod tests { use crate::timer::builder::TimerBuilder; }"),
        ("time/permit", "mod real { use super::Other; use crate::time::sync::Mutex; }"),
        ("driver/shard", "use std::time::Duration; let x = Duration::ZERO;"),
        ("lib", "pub use crate::wheel::Key; pub use timer::task::Task;"),
    ] {
        assert_eq!(import_faults(module, text), Vec::<String>::new(), "{module}: {text}");
    }
    for (module, text) in [
        ("driver/shard", "use crate::timer::hashed_wheel_timer::HashedWheelTimer;"),
        ("driver/shard", "use crate::{error::StopError, timer::task::Task};"),
        ("driver/shard", "use crate::{wheel::Key, driver::{capacity::Capacity, ticker}};"),
        ("driver/shard", "fn f() { let timer = crate::timer::builder::make(); }"),
        ("driver/shard", "fn f(x: &'static str) -> crate::timer::task::Task { 'a' }"),
        ("driver/shard", "use super::super::timer::task as other;"),
        ("driver/shard", "impl super::ticker::Handler for u8 {}"),
        ("driver/shard", "use super::*;"),
        ("driver/shard", "use crate::Key;"),
        ("driver/shard", "pub(in crate::timer::task) fn f() {}"),
        ("driver/shard", "mod inner { use super::super::ticker::Ticker; }"),
        ("driver/shard", "include!(\"other.rs\");"),
        ("driver/shard", "#[path = \"other.rs\"] mod other;"),
        ("wheel", "use crate::time::clock::Clock;"),
        ("error", "use crate::time::tick::TickScale;"),
        ("error", "use super::timer::task::Task;"),
        ("wheel/slab", "use super::list::List;"),
        ("wheel/slab", "use super::Wheel;"),
        ("timer/timeout", "use self::super::periodic::Periodic;"),
    ] {
        assert_eq!(import_faults(module, text).len(), 1, "{module}: {text}");
    }
}

#[test]
fn the_rule_for_impls_finds_what_it_forbids() {
    let source =
        |module: &str, text: &str| Source { module: module.to_owned(), text: text.to_owned() };
    let home = source("driver/shard", "pub struct Shard<T>(T); impl<T> Shard<T> {}");
    let neighbour =
        source("driver/ticker", "impl<T: Send> super::shard::Shard<T> where T: Sync {}");
    let of_a_trait = source("timer/task", "impl<T> Clone for Shard<T> { fn f() -> impl Copy {} }");
    assert!(impl_faults(&[home, neighbour, of_a_trait]).is_empty());
    let home = source("driver/shard", "pub struct Shard<T>(T);");
    let elsewhere = source("timer/task", "use x; impl<T> Shard<T> {}");
    assert_eq!(impl_faults(&[home, elsewhere]).len(), 1);
}
