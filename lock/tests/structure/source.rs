//! Reads Rust source as far as these tests need it: which modules a file names, what it defines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file and its place in the tree of modules.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) path: PathBuf,
    /// `["store", "redis"]` for `store/redis/mod.rs`, nothing for `lib.rs`.
    pub(crate) segments: Vec<String>,
    /// Whether it is the `mod.rs` of a folder, or `lib.rs`.
    pub(crate) is_face: bool,
    /// The text without comments, string contents and unit tests. Line breaks are kept.
    pub(crate) code: String,
    pub(crate) text: String,
}

impl Module {
    /// The folder that the file lies in, as segments.
    pub(crate) fn folder(&self) -> &[String] {
        if self.is_face { &self.segments } else { &self.segments[..self.segments.len() - 1] }
    }

    pub(crate) fn line_at(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }
}

/// All modules below `root`, which holds `lib.rs`, by their segments.
pub(crate) fn modules(root: &Path) -> BTreeMap<Vec<String>, Module> {
    let mut modules = BTreeMap::new();
    collect(root, &mut Vec::new(), &mut modules);
    modules
}

fn collect(folder: &Path, within: &mut Vec<String>, modules: &mut BTreeMap<Vec<String>, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            within.push(stem);
            collect(&path, within, modules);
            within.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_face = stem == "mod" || stem == "lib";
            let mut segments = within.clone();
            segments.extend((!is_face).then_some(stem));
            let text = fs::read_to_string(&path).unwrap();
            let code = code_of(&text);
            modules.insert(segments.clone(), Module { path, segments, is_face, code, text });
        }
    }
}

/// The text up to the unit tests, with comments and the contents of strings replaced by spaces.
fn code_of(text: &str) -> String {
    let end = text
        .match_indices("\n#[cfg(test)]\nmod ")
        .find(|(at, mark)| text[at + mark.len()..].lines().next().unwrap_or("").ends_with('{'))
        .map_or(text.len(), |(at, _)| at);
    blank_comments_and_strings(&text[..end])
}

fn blank_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (length, keep) = if rest.starts_with(b"//") {
            (rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), 0)
        } else if rest[0] == b'"' {
            (string_length(rest), 1)
        } else if rest.starts_with(b"'\"'") || rest.starts_with(b"'/'") {
            (3, 0)
        } else {
            at += 1;
            continue;
        };
        for byte in &mut code[at + keep..at + length] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += length;
    }
    // Only whole characters were replaced.
    String::from_utf8(code).unwrap()
}

/// The length of the string that `rest` begins with.
fn string_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A path that a file names, such as `crate::model::name::LockName`, and where.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    pub(crate) offset: usize,
}

/// All paths of a file: those of `use` declarations, taken apart, and those in the code.
pub(crate) fn paths(code: &str) -> Vec<Named> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let word = word_at(code, at);
        if word.is_empty() {
            at += code[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        at = path_from(code, at, &mut Vec::new(), &mut paths);
    }
    paths
}

fn word_at(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    &rest[..end.unwrap_or(rest.len())]
}

/// Reads a path that begins at `at`, with the braces that it may end with. Answers where it ends.
fn path_from(code: &str, at: usize, prefix: &mut Vec<String>, paths: &mut Vec<Named>) -> usize {
    let (start, depth) = (at, prefix.len());
    let mut at = at;
    loop {
        let word = word_at(code, at);
        at += word.len();
        prefix.push(word.to_owned());
        if !code[at..].starts_with("::") {
            break;
        }
        at += 2;
        if code[at..].starts_with('{') {
            at += 1;
            while at < code.len() && !code[at..].starts_with('}') {
                if word_at(code, at).is_empty() {
                    at += 1;
                } else {
                    at = path_from(code, at, prefix, paths);
                }
            }
            prefix.truncate(depth);
            return at + 1;
        }
        if word_at(code, at).is_empty() {
            break;
        }
    }
    if prefix.len() > 1 {
        paths.push(Named { segments: prefix.clone(), offset: start });
    }
    prefix.truncate(depth);
    at
}

/// The types that a file defines.
pub(crate) fn definitions(code: &str) -> Vec<String> {
    after_keywords(code, &["struct", "enum", "union", "trait", "type"])
        .into_iter()
        .map(|(_, name)| name)
        .collect()
}

/// The types that a file has inherent `impl` blocks of, and where.
pub(crate) fn inherent_impls(code: &str) -> Vec<(usize, String)> {
    let mut impls = Vec::new();
    for (at, _) in code.match_indices("\nimpl") {
        let header = code[at + 5..].split('{').next().unwrap();
        let generic = header.starts_with('<');
        let rest = if generic { skip_generics(header) } else { header };
        if rest.contains(" for ") || !rest.starts_with(' ') {
            continue;
        }
        let path = rest.trim_start().split(['<', ' ', '\n']).next().unwrap();
        impls.push((at + 1, path.rsplit("::").next().unwrap().to_owned()));
    }
    impls
}

fn skip_generics(header: &str) -> &str {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, letter) in header.char_indices() {
        match letter {
            '<' => depth += 1,
            // Not of an arrow.
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &header[at + 1..];
        }
        before = letter;
    }
    ""
}

fn after_keywords(code: &str, keywords: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for line_start in std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)) {
        let line = code[line_start..].lines().next().unwrap_or("");
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if words.next().is_some_and(|word| keywords.contains(&word))
            && let Some(word) = words.next()
        {
            found.push((line_start, word_at(word, 0).to_owned()));
        }
    }
    found
}
