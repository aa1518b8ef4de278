//! The order of the modules, ground to roof: a file imports only what stands above it in the list.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Ground first.
const ORDER: [&str; 34] = [
    "sync",
    "error",
    "wheel/bits",
    "wheel/free",
    "wheel/fresh",
    "wheel/gone",
    "wheel/slab",
    "wheel/list",
    "wheel/table",
    "wheel/rounds",
    "wheel",
    "tick",
    "clock",
    "task",
    "period",
    "config",
    "panics",
    "histogram",
    "statistics",
    "firing",
    "alarm",
    "bound",
    "shard",
    "ticker",
    "loom_tests",
    "lifecycle",
    "census",
    "batch",
    "job",
    "timeout",
    "periodic",
    "timer",
    "channel",
    "lib",
];

fn sources() -> Vec<(String, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    files.sort();
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().with_extension("");
            let name = name.to_str().unwrap().replace('\\', "/");
            let name = name.strip_suffix("/mod").unwrap_or(&name).to_owned();
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

fn height(module: &str) -> usize {
    ORDER
        .iter()
        .position(|known| *known == module)
        .unwrap_or_else(|| panic!("{module} is not in the list: give it its place"))
}

/// The modules that a line of `module` names, or what is wrong with how it names them.
fn imports(module: &str, line: &str) -> Vec<Result<String, String>> {
    let mut found = Vec::new();
    for (start, _) in line.match_indices("crate::") {
        let mut segments = line[start + "crate::".len()..]
            .split(|character: char| !character.is_alphanumeric() && character != '_')
            .filter(|segment| !segment.is_empty());
        let first = segments.next().unwrap_or_default().to_owned();
        if module == "lib" {
            found.push(Ok(first));
        } else if !first.starts_with(char::is_lowercase) {
            found.push(Err(format!("{module} imports {first} from the root of the crate")));
        } else {
            let nested = format!("{first}/{}", segments.next().unwrap_or_default());
            found.push(Ok(if ORDER.contains(&nested.as_str()) { nested } else { first }));
        }
    }
    for (start, _) in line.match_indices("super::") {
        let name: String = line[start + "super::".len()..]
            .chars()
            .take_while(|character| character.is_alphanumeric() || *character == '_')
            .collect();
        let folder = module.rsplit_once('/').map_or("", |(folder, _)| folder);
        let sibling = format!("{folder}/{name}");
        found.push(if ORDER.contains(&sibling.trim_start_matches('/')) {
            Ok(sibling.trim_start_matches('/').to_owned())
        } else {
            Err(format!("{module} imports {name} from its parent"))
        });
    }
    found
}

/// What is wrong with the text of a module.
fn faults(module: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // Tests stand at the bottom and may use all of the crate.
    let lines = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    for (number, line) in lines {
        let code = line.split("//").next().unwrap_or_default();
        if code.trim_start().starts_with("pub(in") || code.contains("{crate::") {
            faults
                .push(format!("{module}:{}: write the import so that it can be read", number + 1));
        }
        for import in imports(module, code) {
            match import {
                Err(fault) => faults.push(format!("{module}:{}: {fault}", number + 1)),
                Ok(other) if height(&other) >= height(module) => {
                    faults.push(format!("{module}:{}: {module} imports {other}", number + 1));
                }
                Ok(_) => {}
            }
        }
    }
    faults
}

#[test]
fn a_file_imports_only_what_stands_above_it() {
    let faults: Vec<String> =
        sources().iter().flat_map(|(module, text)| faults(module, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_list_names_every_file_and_no_other() {
    let mut listed: Vec<String> = ORDER.iter().map(ToString::to_string).collect();
    listed.sort();
    let files: Vec<String> = sources().into_iter().map(|(module, _)| module).collect();
    assert_eq!(files, listed);
}

#[test]
fn every_file_says_its_idea_first_and_leaves_nothing_undone() {
    for (module, text) in sources() {
        assert!(text.starts_with("//! "), "{module} does not begin with its idea");
        for mark in ["FIXME", "TODO", "XXX", "HACK", "todo!", "unimplemented!"] {
            assert!(!text.contains(mark), "{module} still has a {mark}");
        }
    }
}

#[test]
fn the_rules_find_what_they_forbid() {
    assert!(faults("shard", "use crate::wheel::Key;").is_empty());
    assert!(faults("wheel/list", "use super::slab::Slab;").is_empty());
    assert!(faults("wheel", "use self::slab::Slab;").is_empty());
    assert!(faults("shard", "//! See crate::timer.").is_empty());
    for (module, line) in [
        ("shard", "use crate::timer::HashedWheelTimer;"),
        ("shard", "let timer = crate::timer::make();"),
        ("wheel", "use crate::clock::Clock;"),
        ("error", "use crate::tick::TickScale;"),
        ("wheel/slab", "use super::list::List;"),
        ("wheel/slab", "use super::Wheel;"),
        ("shard", "use crate::Key;"),
        ("alarm", "use super::Timeout;"),
        ("alarm", "use super::timeout::Timeout;"),
    ] {
        assert_eq!(faults(module, line).len(), 1, "{module}: {line}");
    }
}
