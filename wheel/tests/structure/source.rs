//! Reads the source files as tokens, and finds the paths and `impl` blocks in them.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file of the crate.
pub(crate) struct Source {
    /// Its module, such as `wheel/slab`; `wheel` for `wheel/mod.rs`.
    pub(crate) module: String,
    pub(crate) text: String,
}

/// A path as it is written at some place, from the module at that place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The inline modules around it, from the outside in.
    pub(crate) within: Vec<String>,
    pub(crate) segments: Vec<String>,
}

pub(crate) fn sources() -> Vec<Source> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    collect(&root, &root, &mut sources);
    sources.sort_by(|one, other| one.module.cmp(&other.module));
    sources
}

fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().with_extension("");
            let name = name.to_str().unwrap().replace('\\', "/");
            let module = name.strip_suffix("/mod").unwrap_or(&name).to_owned();
            sources.push(Source { module, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

/// Identifiers, `::`, and single characters. Comments, literals and lifetimes are left out, and so
/// are `mod tests { .. }`, which may use all of the crate.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").unwrap() + 2
        } else if let Some(raw) = raw_string(rest) {
            raw
        } else if character == '"' {
            quoted(rest, '"')
        } else if character == '\'' {
            lifetime(rest).unwrap_or_else(|| quoted(rest, '\''))
        } else if character.is_alphanumeric() || character == '_' {
            let length = rest.find(|other: char| !other.is_alphanumeric() && other != '_');
            let length = length.unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") || rest.starts_with("->") {
            tokens.push(rest[..2].to_owned());
            2
        } else {
            if !character.is_whitespace() {
                tokens.push(character.to_string());
            }
            character.len_utf8()
        };
        rest = &rest[skipped..];
    }
    without_tests(&tokens)
}

/// The length of a raw string that the text starts with.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r').or_else(|| text.strip_prefix("br"))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let content = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - content.len() + content.find(&end)? + end.len())
}

/// The length of a literal that the text starts with.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        if character == quote && !escaped {
            return at + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    panic!("a literal without an end")
}

/// The length of a lifetime that the text starts with.
fn lifetime(text: &str) -> Option<usize> {
    let name = &text[1..];
    let length = name.find(|other: char| !other.is_alphanumeric() && other != '_')?;
    (length > 0 && !name[length..].starts_with('\'')).then_some(length + 1)
}

fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&["mod".to_owned(), "tests".to_owned(), "{".to_owned()]) {
            at = block_end(tokens, at + 2);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Behind the block that opens at `start`.
fn block_end(tokens: &[String], start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => return at + 1,
            "}" => depth -= 1,
            _ => {}
        }
    }
    panic!("a block without an end")
}

/// Every path with two segments or more, in `use` declarations and in code.
pub(crate) fn imports(tokens: &[String]) -> Vec<Import> {
    let mut imports = Vec::new();
    // The inline modules around the present token, each with the depth of braces outside it.
    let mut within: Vec<(usize, String)> = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < tokens.len() {
        let is_path = tokens.get(at + 1).is_some_and(|next| next == "::") && is_name(&tokens[at]);
        let mut paths = Vec::new();
        match tokens[at].as_str() {
            "mod" if tokens.get(at + 2).is_some_and(|next| next == "{") => {
                within.push((depth, tokens[at + 1].clone()));
                at += 2;
                continue;
            }
            "use" => at = use_tree(tokens, at + 1, &[], &mut paths),
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                within.pop_if(|(outside, _)| *outside == depth);
            }
            _ if is_path => at = use_tree(tokens, at, &[], &mut paths) - 1,
            _ => {}
        }
        let within: Vec<String> = within.iter().map(|(_, name)| name.clone()).collect();
        imports
            .extend(paths.into_iter().map(|segments| Import { within: within.clone(), segments }));
        at += 1;
    }
    imports
}

/// Reads a path or a tree of paths, and returns the position behind it.
fn use_tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        let token = tokens.get(at).map_or("", String::as_str);
        match token {
            "{" => {
                at += 1;
                while tokens[at] != "}" {
                    at = use_tree(tokens, at, &path, paths);
                    if tokens[at] == "as" {
                        at += 2;
                    }
                    if tokens[at] == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "::" => at += 1,
            "*" => {
                paths.push(path);
                return at + 1;
            }
            _ if is_name(token) => {
                path.push(token.to_owned());
                at += 1;
                if tokens.get(at).is_none_or(|next| next != "::") {
                    paths.push(path);
                    return at;
                }
            }
            // Generic arguments: their own paths are read on their own.
            _ => {
                paths.push(path);
                return at;
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The names of the types and traits that are defined.
pub(crate) fn definitions(tokens: &[String]) -> Vec<String> {
    let keyword = |token: &str| ["struct", "enum", "union", "trait", "type"].contains(&token);
    let pairs = tokens.windows(2).filter(|pair| keyword(&pair[0]) && is_name(&pair[1]));
    pairs.map(|pair| pair[1].clone()).collect()
}

/// The types that have an inherent `impl` block.
pub(crate) fn inherent_impls(tokens: &[String]) -> Vec<String> {
    let mut types = Vec::new();
    for at in 0..tokens.len() {
        let starts_item = at == 0 || ["}", ";", "]", "{"].contains(&tokens[at - 1].as_str());
        if tokens[at] == "impl" && starts_item {
            let end = tokens[at..].iter().position(|token| token == "{" || token == "where");
            let header = outside_of_angles(&tokens[at + 1..at + end.unwrap()]);
            if !header.contains(&"for") {
                types.push((*header.last().unwrap()).to_owned());
            }
        }
    }
    types
}

fn outside_of_angles(tokens: &[String]) -> Vec<&str> {
    let mut depth = 0_usize;
    let mut outside = Vec::new();
    for token in tokens {
        match token.as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            other if depth == 0 => outside.push(other),
            _ => {}
        }
    }
    outside
}
