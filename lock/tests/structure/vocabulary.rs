//! Names that were replaced by the field's terms. They do not come back.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Types that have another name now.
const TYPES: &[&str] = &[
    "Acquirer",
    "Astray",
    "Audience",
    "Birth",
    "Bundle",
    "Claim",
    "Company",
    "Crew",
    "Debt",
    "Desk",
    "Distrusted",
    "Errand",
    "Errands",
    "Farewell",
    "GaveUp",
    "GivesBack",
    "Grip",
    "Grips",
    "InLine",
    "Lane",
    "Lanes",
    "Lasts",
    "Leaving",
    "Moment",
    "NumberTaker",
    "Owed",
    "OwedPermits",
    "Patience",
    "PermitTaker",
    "Places",
    "Plan",
    "Rare",
    "Scattered",
    "Seat",
    "Stand",
    "Taking",
    "Team",
    "Teller",
    "Tenant",
    "Terms",
    "Together",
    "Tried",
    "UndoTake",
    "Untold",
    "Whereabouts",
    "Wish",
];

/// Functions, methods and variables that have another name now.
const NAMES: &[&str] = &[
    "answered_elsewhere",
    "attentive",
    "begin_to_leave",
    "by_callers",
    "by_rounds",
    "came_to",
    "carry_out",
    "census",
    "close_gap",
    "countable",
    "crew",
    "drop_want",
    "enter_again",
    "errand",
    "errands",
    "farewell",
    "flushers",
    "gave_up",
    "give_up",
    "grip",
    "homeless",
    "in_millis",
    "is_beside",
    "is_of_the_place",
    "is_of_the_request",
    "is_the_servers_state",
    "let_go",
    "look_around",
    "may_outlive",
    "parts_keys",
    "passes_by_itself",
    "put_off",
    "resettle",
    "rhythm",
    "tell_later",
    "teller",
    "that_lasts",
    "unkept",
    "unsettled",
    "untold",
    "waits_as",
    "whereabouts",
];

pub(crate) fn source_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_source = |extension: &OsStr| extension == "rs" || extension == "lua";
        if path.is_dir() {
            // What a build has made is not ours.
            if !path.ends_with("target") {
                source_files(&path, files);
            }
        } else if path.extension().is_some_and(is_source) {
            files.push(path);
        }
    }
}

/// The sources of all packages.
pub(crate) fn workspace_files() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["lock", "wheel", "cli", "fixture", "benches", "examples", "fuzz"] {
        source_files(&workspace.join(folder), &mut files);
    }
    files
}

#[test]
fn old_names_do_not_come_back() {
    let files = workspace_files();
    let mut wrong = Vec::new();
    // This file has to name them.
    for path in files.iter().filter(|path| !path.ends_with(file!())) {
        let text = fs::read_to_string(path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            for word in words.filter(|word| TYPES.contains(word) || NAMES.contains(word)) {
                wrong.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{} old names:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_glossary_has_at_most_sixty_lines() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(workspace.join("CONTRIBUTING.md")).unwrap();
    let (_, glossary) = page.split_once("## Glossary").unwrap();
    let lines = glossary.lines().filter(|line| line.starts_with("| ")).count();
    assert!((40..=60).contains(&lines), "{lines}");
}
