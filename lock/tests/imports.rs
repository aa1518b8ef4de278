//! The order of the files, ground to roof: each may import only what stands above it in the list.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

/// A folder stands for the files in it; its own order is below.
const ORDER: &[&str] = &[
    "error",
    "statistics",
    "name",
    "kind",
    "owner",
    "back_off",
    "permit_id",
    "clock",
    "lease",
    "validity",
    "report",
    "callbacks",
    "config",
    "credentials",
    "tls_settings",
    "value",
    "keyspace",
    "op",
    "store",
    "call",
    "trace",
    "teller",
    "wait",
    "claim",
    "told",
    "hold",
    "holds",
    "watchdog",
    "process",
    "leaving",
    "grip",
    "guard",
    "fenced_guard",
    "owned_guard",
    "guards",
    "plan",
    "caller",
    "part",
    "bundle",
    "taking",
    "tied",
    "multi_guard",
    "asked",
    "errands",
    "round",
    "farewell",
    "crew",
    "red_guard",
    "team",
    "lock",
    "read_write_lock",
    "taken",
    "permit",
    "permits",
    "taker",
    "semaphore",
    "expirable_semaphore",
    "count_down_latch",
    "multi_lock",
    "client",
    "client_builder",
    "red_lock",
    "faults",
    "redisson",
    "lib",
];

/// The order inside each folder. `mod` is a face: it re-exports, and nothing beside it imports from it, unless it stands
/// before them in the list.
const FOLDERS: &[(&str, &[&str])] = &[
    (
        "op",
        &[
            "operation",
            "request",
            "acquire",
            "recount",
            "release",
            "fair",
            "read_write",
            "read",
            "write",
            "fenced",
            "text",
            "force_release",
            "semaphore",
            "permits",
            "renew",
            "permit_leases",
            "latch",
            "query",
            "mod",
            "differential",
        ],
    ),
    ("store", &["failure", "listener", "stream", "memory", "redis", "mod"]),
    (
        "store/redis",
        &[
            "trust",
            "address",
            "seeds",
            "slot",
            "slot_map",
            "command",
            "channels",
            "redirection",
            "limit",
            "tls",
            "socket",
            "replies",
            "connection",
            "eviction",
            "replicas",
            "topology",
            "asking",
            "resolve",
            "reach",
            "server_clock",
            "sockets",
            "sentinels",
            "whereabouts",
            "wire",
            "server",
            "pipeline",
            "pool",
            "subscription",
            "follower",
            "node",
            "members",
            "audience",
            "pace",
            "cluster",
            "lookout",
            "store",
            "mod",
        ],
    ),
    ("wait", &["queue", "mod"]),
    (
        "watchdog",
        &[
            "jumps",
            "releases",
            "round_trip",
            "schedule",
            "renewer",
            "lanes",
            "batches",
            "mod",
            "placing",
            "moved",
            "owing",
            "finishing",
            "sweep",
            "renewal",
            "handing_out",
        ],
    ),
];

/// What a folder's files use of its face by a path through the crate: types that the face only re-exports from files
/// which stand lower.
const THROUGH_THE_FACE: &[(&str, &str)] = &[("store/redis", "store")];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The files of a folder, without their ending.
fn stems(folder: &Path) -> Vec<String> {
    let mut stems: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() || path.extension().is_some_and(|ending| ending == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    stems.sort();
    stems
}

/// The code of a file, its tests and comments left out, with line numbers.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.to_owned()))
        .take_while(|(_, line)| line != "#[cfg(test)]" || path.ends_with("clock.rs"))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .collect()
}

/// The first names of all paths that begin with `root::`, as in `crate::name` and `crate::{a, b::c}`.
fn names_after<'a>(line: &'a str, root: &str) -> Vec<&'a str> {
    line.match_indices(root)
        .filter_map(|(at, _)| {
            let rest = &line[at + root.len()..];
            rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
        })
        .collect()
}

fn files() -> Vec<PathBuf> {
    let mut folders = vec![source()];
    folders.extend(FOLDERS.iter().map(|(folder, _)| source().join(folder)));
    folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .collect()
}

#[test]
fn every_file_has_its_place_in_the_order() {
    let mut known: Vec<&str> = ORDER.to_vec();
    known.sort_unstable();
    assert_eq!(stems(&source()), known);
    for (folder, order) in FOLDERS {
        let mut known = order.to_vec();
        known.sort_unstable();
        let stems = stems(&source().join(folder));
        assert_eq!(stems, known, "in {folder}");
    }
}

#[test]
fn files_import_only_what_stands_above_them() {
    let place = |name: &str| ORDER.iter().position(|other| *other == name).unwrap();
    let mut wrong = Vec::new();
    for path in files() {
        let within = path.strip_prefix(source()).unwrap().with_extension("");
        let module = within.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let folder = within.parent().unwrap().to_string_lossy().into_owned();
        for (number, line) in code(&path) {
            for used in names_after(&line, "crate::") {
                if !ORDER.contains(&used) {
                    wrong.push(format!("{}:{number}: what is `{used}`?", path.display()));
                } else if place(used) > place(&module)
                    || (used == module && !THROUGH_THE_FACE.contains(&(folder.as_str(), used)))
                {
                    wrong.push(format!("{}:{number}: {module} uses {used}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_of_a_folder_import_only_siblings_above_them() {
    let mut wrong = Vec::new();
    for (folder, order) in FOLDERS {
        let place = |name: &str| order.iter().position(|other| *other == name);
        for stem in *order {
            let path = source().join(folder).join(format!("{stem}.rs"));
            if !path.exists() {
                continue;
            }
            for (number, line) in code(&path) {
                for used in names_after(&line, "super::") {
                    // A name that is no sibling comes from the face itself.
                    let used = place(used).or(place("mod")).unwrap();
                    if used >= place(stem).unwrap() {
                        wrong.push(format!("{}:{number}: {line}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_one_folder_names_the_redis_crate() {
    for path in files() {
        // The folder's own name is `redis` too, and its parent re-exports from it.
        if path.starts_with(source().join("store/redis")) || path.ends_with("store/mod.rs") {
            continue;
        }
        for (number, line) in code(&path) {
            let named = line.contains("redis::");
            assert!(!named, "{}:{number}: {line}", path.display());
        }
    }
}

#[test]
fn every_file_opens_with_its_idea_and_leaves_nothing_unfinished() {
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! "), "{}", path.display());
        for mark in ["FIXME", "XXX", "TODO"] {
            assert!(!text.contains(mark), "{}: {mark}", path.display());
        }
    }
}
