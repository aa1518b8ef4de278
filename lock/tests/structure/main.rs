//! The structure of the source: the order of folders and files, the vocabulary, and citations.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod citations;
mod source;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use source::Module;

/// The folders and files, from the bottom up: each may import only what is before it in the list of
/// the folder that both are in. `lib.rs` and each `mod.rs` are above all of their folder, so no
/// other file of the folder imports from them.
const ORDER: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "error",
            "guide",
            "model",
            "events",
            "ops",
            "hold",
            "store",
            "watchdog",
            "runtime",
            "lock",
            "semaphore",
            "client",
        ],
    ),
    ("client", &["locks", "client", "builder", "schedules", "simulation"]),
    (
        "client/simulation",
        &["server", "slots", "network", "faults", "process", "slot_moves", "red", "world"],
    ),
    ("events", &["report", "acquires", "stats", "callbacks", "tracing", "dispatcher", "wakers"]),
    ("hold", &["siblings", "listener", "inherited", "state", "hold", "registry"]),
    (
        "lock",
        &[
            "lost_future",
            "raw_guard",
            "spec",
            "acquire",
            "guard",
            "held_locks",
            "any_lock",
            "status",
            "multi",
            "lock",
            "red",
            "read_write",
            "jobs",
            "election",
            "checked",
        ],
    ),
    (
        "lock/checked",
        &[
            "mutation",
            "search",
            "server",
            "state",
            "history",
            "checked_lock",
            "serving",
            "clients",
            "properties",
            "one_lock",
            "majority",
            "searches",
            "mutations",
        ],
    ),
    ("lock/election", &["term", "campaign", "election"]),
    ("lock/jobs", &["run", "job"]),
    ("lock/multi", &["release", "acquire", "guard", "lock"]),
    (
        "lock/red",
        &[
            "pending", "queue", "release", "attempt", "tasks", "workers", "quorum", "guard",
            "acquire", "lock",
        ],
    ),
    (
        "model",
        &[
            "modelled",
            "backoff",
            "clock",
            "kind",
            "label",
            "lease",
            "name",
            "simulated",
            "sync",
            "modelled_timer",
            "owner",
            "panics",
            "validity",
            "wait",
            "wait_mode",
            "fork",
            "permit_id",
            "settings",
        ],
    ),
    (
        "ops",
        &[
            "value",
            "keyspace",
            "operation",
            "query",
            "client_record",
            "request",
            "read_write",
            "acquire",
            "release",
            "force_release",
            "set_count",
            "fair",
            "fenced",
            "latch",
            "inspect",
            "semaphore",
            "permits",
            "read",
            "keep",
            "job",
            "leader",
            "permit_admin",
            "renew",
            "by_kind",
            "differential",
        ],
    ),
    (
        "ops/differential",
        &[
            "worlds",
            "fair",
            "fenced",
            "jobs",
            "latches",
            "mutex",
            "permits",
            "read_write",
            "semaphores",
            "simple",
        ],
    ),
    (
        "runtime",
        &[
            "yielding",
            "wait_queue",
            "wait_registry",
            "hand_over",
            "wait",
            "metrics",
            "kept_holds",
            "client_core",
            "release",
            "named",
            "interleavings",
        ],
    ),
    ("semaphore", &["held", "latch", "acquire", "permit", "semaphore", "expirable", "checked"]),
    (
        "store",
        &[
            "failure",
            "faults",
            "listener",
            "server_id",
            "pipeline",
            "shutdown",
            "memory",
            "redis",
            "store",
            "retry",
        ],
    ),
    ("store/redis", &["address", "resp", "net", "sentinel", "node", "cluster"]),
    ("store/redis/address", &["credentials", "tls_settings", "tls_config", "url", "cluster_seeds"]),
    (
        "store/redis/cluster",
        &[
            "refresh_timer",
            "slot_map",
            "slots_reply",
            "nodes",
            "slots_query",
            "subscriptions",
            "topology",
            "refresh",
            "cluster",
        ],
    ),
    (
        "store/redis/net",
        &[
            "deadline",
            "single_flight",
            "resolve",
            "tls_stream",
            "modelled_socket",
            "socket",
            "connection",
            "open_sockets",
            "dial",
        ],
    ),
    (
        "store/redis/node",
        &[
            "call_queue",
            "round_trip",
            "mailbox",
            "stream_halves",
            "shared_connection",
            "participant",
            "shared_calls",
            "schedules",
            "info",
            "nonblocking_writer",
            "outbox",
            "replica_acks",
            "server_clock",
            "request",
            "server",
            "failover_watcher",
            "pipeline",
            "pool",
            "caller_connections",
            "subscriber",
            "node",
        ],
    ),
    ("store/redis/resp", &["decode", "encode", "slot", "redirect", "pubsub"]),
    ("store/redis/sentinel", &["report", "query", "master"]),
    (
        "watchdog",
        &[
            "release_queue",
            "release_log",
            "clock_jump",
            "rtt",
            "schedule",
            "batch",
            "context",
            "scheduler",
            "worker",
            "workers",
            "pending_releases",
            "failover",
            "server_check",
            "record_writer",
            "shared",
            "endings",
            "unread_release",
            "dispatch",
            "release_sender",
            "renewal_round",
            "worker_thread",
            "ticker",
            "watchdog",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn order() -> BTreeMap<&'static str, &'static [&'static str]> {
    ORDER.iter().copied().collect()
}

/// The module that a path leads to: its longest beginning that is one.
fn target(
    modules: &BTreeMap<Vec<String>, Module>,
    from: &Module,
    named: &[String],
) -> Option<Vec<String>> {
    let mut rest = named;
    let mut base = match named[0].as_str() {
        "crate" => Vec::new(),
        "self" => from.segments.clone(),
        "super" => {
            let mut base = from.segments.clone();
            base.pop()?;
            base
        }
        child => {
            let mut base = from.segments.clone();
            base.push(child.to_owned());
            if !modules.contains_key(&base) {
                // A type, a variant, or another crate.
                return None;
            }
            base
        }
    };
    rest = &rest[1..];
    while let [first, others @ ..] = rest {
        if first == "super" {
            base.pop();
        } else {
            base.push(first.clone());
            if !modules.contains_key(&base) {
                base.pop();
                break;
            }
        }
        rest = others;
    }
    Some(base)
}

/// Why `from` may not import `to`, if it may not.
fn objection(from: &Module, to: &Module) -> Option<String> {
    if from.segments == to.segments {
        return None;
    }
    let (above, below) = (&from.segments, &to.segments);
    let common = above.iter().zip(below).take_while(|(one, other)| one == other).count();
    if below.len() == common {
        return Some("it is the `mod.rs` of a folder that this file is in".to_owned());
    }
    if above.len() == common {
        // A `mod.rs` imports from its folder.
        return None;
    }
    let folder = above[..common].join("/");
    let order = order();
    let Some(names) = order.get(folder.as_str()) else {
        return Some(format!("the folder `{folder}` has no order"));
    };
    let place = |name: &String| names.iter().position(|other| other == name);
    (place(&above[common]) <= place(&below[common]))
        .then(|| format!("in `{folder}`, `{}` is below `{}`", above[common], below[common]))
}

#[test]
fn every_file_is_in_the_order() {
    let modules = source::modules(&root());
    let mut children: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for segments in modules.keys().filter(|segments| !segments.is_empty()) {
        let (last, folder) = segments.split_last().unwrap();
        children.entry(folder.join("/")).or_default().insert(last.clone());
    }
    let listed: BTreeMap<String, BTreeSet<String>> = ORDER
        .iter()
        .map(|(folder, names)| {
            ((*folder).to_owned(), names.iter().map(|name| (*name).to_owned()).collect())
        })
        .collect();
    assert_eq!(children, listed);
}

#[test]
fn files_import_only_what_is_below_them() {
    let modules = source::modules(&root());
    let mut wrong = Vec::new();
    for module in modules.values() {
        for named in source::paths(&module.code) {
            let Some(target) = target(&modules, module, &named.segments) else { continue };
            if let Some(objection) = objection(module, &modules[&target]) {
                let (path, line) = (module.path.display(), module.line_at(named.offset));
                wrong.push(format!("{path}:{line}: {}: {objection}", named.segments.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn methods_of_a_type_are_in_its_folder() {
    let modules = source::modules(&root());
    let mut defined: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
    for module in modules.values() {
        let folder = defined.entry(module.folder().to_vec()).or_default();
        folder.extend(source::definitions(&module.code));
    }
    let mut wrong = Vec::new();
    for module in modules.values() {
        for (offset, name) in source::inherent_impls(&module.code) {
            if !defined[module.folder()].contains(&name) {
                let (path, line) = (module.path.display(), module.line_at(offset));
                wrong.push(format!("{path}:{line}: `{name}` is defined in another folder"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_root_has_at_most_ten_folders_and_three_files() {
    let modules = source::modules(&root());
    let (mod_files, files): (Vec<_>, Vec<_>) =
        modules.values().filter(|module| module.segments.len() == 1).partition(|one| one.is_face);
    assert!(mod_files.len() <= 10, "{} folders", mod_files.len());
    // The third is `lib.rs`.
    assert!(files.len() <= 2, "{} files", files.len() + 1);
}

#[test]
fn lib_rs_is_short() {
    let modules = source::modules(&root());
    let lines = modules[&Vec::new()].text.lines().count();
    assert!(lines <= 130, "{lines} lines");
}

#[test]
fn only_one_folder_names_the_redis_crate() {
    let redis = ["store".to_owned(), "redis".to_owned()];
    for module in source::modules(&root()).values() {
        if module.segments.starts_with(&redis) {
            continue;
        }
        for named in source::paths(&module.code) {
            let is_named = named.segments[0] == "redis" && module.segments != ["store"];
            assert!(!is_named, "{}", module.path.display());
        }
    }
}

/// A fork copies these in whatever state they are. A child that meets one that another thread was
/// filling waits forever.
#[test]
fn no_static_is_filled_when_it_is_first_needed_and_no_lock_shares_a_table_with_others() {
    // Only tests have it, and they fork nothing.
    let is_shipped = |module: &&Module| module.segments != ["model", "simulated"];
    for module in source::modules(&root()).values().filter(is_shipped) {
        for (number, line) in module.code.lines().enumerate() {
            let filled_late = line.contains("LazyLock")
                || line.contains("thread_local!")
                || line.contains("static ") && line.contains("Once");
            let shared = line.contains("parking_lot");
            let path = module.path.display();
            assert!(!filled_late && !shared, "{path}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn every_file_opens_with_its_idea_and_leaves_nothing_unfinished() {
    for module in source::modules(&root()).values() {
        let path = module.path.display();
        assert!(module.text.starts_with("//! "), "{path}");
        for mark in ["FIXME", "XXX", "TODO"] {
            assert!(!module.text.contains(mark), "{path}: {mark}");
        }
    }
}

#[test]
fn comments_have_at_most_a_hundred_columns() {
    let mut wrong = Vec::new();
    for path in vocabulary::workspace_files() {
        let is_script = path.extension().is_some_and(|extension| extension == "lua");
        let mark = if is_script { "--" } else { "//" };
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with(mark) && line.chars().count() > 100 {
                wrong.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    let some = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} lines, among them:\n{some}", wrong.len());
}
