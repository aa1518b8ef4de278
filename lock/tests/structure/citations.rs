//! Comments cite decisions as `DESIGN: late copies`. Each citation is a heading of `DESIGN.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::vocabulary::source_files;

const MARK: &str = "DESIGN: ";

/// The text of a comment line; `None` for a line of code.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// The text with comments as long lines, so that no citation is broken by the end of a line.
fn joined_comments(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        joined.push_str(comment(line).unwrap_or("\n"));
        joined.push(' ');
    }
    joined
}

/// The titles that a text cites. Several are divided by commas.
fn citations(text: &str) -> Vec<&str> {
    let ends = |letter| matches!(letter, ')' | '.' | ';' | ':' | '`' | '\n');
    let lists = text.split(MARK).skip(1).map(|rest| rest.split(ends).next().unwrap_or_default());
    lists.flat_map(|list| list.split(',')).map(str::trim).collect()
}

#[test]
fn every_cited_decision_is_a_heading_of_the_design() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let design = fs::read_to_string(workspace.join("DESIGN.md")).unwrap();
    let titles: BTreeSet<_> = design.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut texts: Vec<(PathBuf, String)> = vec![("DESIGN.md".into(), design.replace('\n', " "))];
    for folder in ["lock/src", "wheel/src"] {
        let mut files = Vec::new();
        source_files(&workspace.join(folder), &mut files);
        let before = texts.len();
        for path in files {
            let joined = joined_comments(&fs::read_to_string(&path).unwrap());
            if joined.contains(MARK) {
                texts.push((path, joined));
            }
        }
        assert!(texts.len() > before + 10, "{} files of {folder} cite", texts.len() - before);
    }
    let mut wrong = Vec::new();
    for (path, text) in &texts {
        for title in citations(text).into_iter().filter(|title| !titles.contains(title)) {
            wrong.push(format!("{}: `{title}`", path.display()));
        }
    }
    assert!(wrong.is_empty(), "no such heading:\n{}", wrong.join("\n"));
}

/// The part of a page under this heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap();
    rest.split("\n#").next().unwrap()
}

/// The files that a text names in code, as `ops/acquire.rs` or `retry.rs`.
fn named_files(text: &str) -> BTreeSet<&str> {
    let is_file = |code: &&str| Path::new(code).extension().is_some_and(|ending| ending == "rs");
    text.split('`').skip(1).step_by(2).filter(is_file).collect()
}

#[test]
fn the_paths_of_the_design_name_one_file_each_and_count_those_of_an_acquire() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(folder.join("../DESIGN.md")).unwrap();
    let mut files = Vec::new();
    source_files(&folder.join("src"), &mut files);
    let mut entered = BTreeSet::new();
    for heading in ["### One acquire", "### One wait", "### One renewal", "### One release"] {
        let named = named_files(section(&design, heading));
        assert!(named.len() > 3, "{heading}: {named:?}");
        for name in named {
            let found: Vec<_> = files.iter().filter(|file| file.ends_with(name)).collect();
            assert_eq!(found.len(), 1, "{heading}: `{name}` is {found:?}");
            let is_below = found[0].starts_with(folder.join("src/store/redis"));
            if heading == "### One acquire" && !is_below {
                entered.insert(found[0]);
            }
        }
    }
    let count = format!("It enters {} files above `store/redis`", entered.len());
    assert!(design.contains(&count), "{count}: {entered:?}");
}

#[test]
fn citations_are_read_across_lines_and_commas() {
    let text =
        "//! One (DESIGN: late\n//! copies, retries).\nlet a = 1; // not\n/// DESIGN: forks.\n";
    assert_eq!(citations(&joined_comments(text)), ["late copies", "retries", "forks"]);
}

/// The links to headings, as page and heading: rustdoc finds the page, and does not look for the
/// heading.
fn heading_links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.filter_map(|(link, _)| link.split_once('#')).filter(|(page, _)| !page.contains('/'))
}

/// How rustdoc writes a heading in a link.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    heading.chars().filter(kept).collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[test]
fn every_link_to_a_heading_of_a_page_leads_to_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    source_files(&folder.join("src"), &mut files);
    let pages = fs::read_dir(folder.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(pages.filter(|path| path.is_file()));
    let (mut found, mut wrong) = (0, Vec::new());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for (page, heading) in heading_links(&text) {
            let page = match page.rsplit("::").next().unwrap_or_default() {
                "" => path.clone(),
                "crate" => folder.join("src/lib.rs"),
                module => folder.join(format!("docs/{module}.md")),
            };
            // A link to a heading of an item, which no page has.
            let Ok(page) = fs::read_to_string(page) else { continue };
            let lines = page.lines().map(|line| line.trim_start_matches("//! "));
            found += 1;
            if !lines.filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading) {
                wrong.push(format!("{}: #{heading}", path.display()));
            }
        }
    }
    assert!(found > 10, "{found} links");
    assert!(wrong.is_empty(), "no such heading:\n{}", wrong.join("\n"));
}
