//! The table of outcomes in the crate's documentation.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cell::Cell;
use crate::faults::{Fault, Times};
use crate::operations::{self, Row};
use crate::servers::Kind;

const BEGINS: &str = "<!-- The tables begin: lock/tests/fault_matrix writes them. -->\n";
const ENDS: &str = "<!-- The tables end. -->\n";

/// The words of all cells.
#[derive(Debug, Default)]
pub(crate) struct Table {
    words: HashMap<(&'static str, &'static str, &'static str, bool), String>,
}

impl Table {
    pub(crate) fn enter(&mut self, cell: &Cell, word: String) {
        let Cell { row, fault, times, .. } = cell;
        let first = *times == Times::First;
        self.words.insert((row.family, row.name, fault.name(), first), word);
    }

    /// One table for each family: a line for each fault, a column for each operation.
    fn render(&self) -> String {
        let mut text = String::new();
        let rows = operations::all();
        let mut families: Vec<&str> = rows.iter().map(|row| row.family).collect();
        families.dedup();
        for family in families {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.family == family).collect();
            self.render_family(family, &rows, &mut text);
        }
        text.push('\n');
        text
    }

    fn render_family(&self, family: &str, rows: &[&Row], text: &mut String) {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let names = rows.iter().map(|row| row.name.to_owned());
        let senders = rows.iter().map(|row| linked(row.call));
        text.extend(["\n## ", family, "\n\n"]);
        text.push_str(&line(std::iter::once("fault".to_owned()).chain(names).collect()));
        text.extend(["|", &"---|".repeat(rows.len() + 1), "\n"]);
        text.push_str(&line(std::iter::once("sent by".to_owned()).chain(senders).collect()));
        let kind = rows.first().map_or(Kind::Alone, |row| row.kind);
        for fault in Fault::of(kind) {
            let cells = rows.iter().map(|row| self.cell(row, fault));
            text.push_str(&line(std::iter::once(fault.name().to_owned()).chain(cells).collect()));
        }
    }

    fn cell(&self, row: &Row, fault: Fault) -> String {
        let word = |first| {
            let key = (row.family, row.name, fault.name(), first);
            self.words.get(&key).cloned().unwrap_or_default()
        };
        let (first, every) = (word(true), word(false));
        if first == every { first } else { format!("{first}; {every}") }
    }

    /// Whether the page would say the same of all cells, and in the same form.
    pub(crate) fn is_on_the_page(&self) -> bool {
        let (_, known, _) = parts();
        known == self.render()
    }

    /// Makes the page say what was found.
    pub(crate) fn write(&self) {
        let (before, _, after) = parts();
        fs::write(page(), [&before, BEGINS, &self.render(), ENDS, &after].concat()).unwrap();
    }
}

/// What the page says of each cell.
pub(crate) struct Page(HashMap<(String, String, String), String>);

impl Page {
    pub(crate) fn read() -> Self {
        let (_, known, _) = parts();
        let (mut family, mut names, mut cells) = (String::new(), Vec::new(), HashMap::new());
        for line in known.lines() {
            let words: Vec<String> =
                line.trim_matches('|').split('|').map(|word| word.trim().to_owned()).collect();
            match line.strip_prefix("## ") {
                Some(heading) => heading.clone_into(&mut family),
                None if words[0] == "fault" => names = words,
                None => {
                    for (name, word) in names.iter().zip(&words).skip(1) {
                        let place = (family.clone(), name.clone(), words[0].clone());
                        cells.insert(place, word.clone());
                    }
                }
            }
        }
        Self(cells)
    }

    /// The word for a cell; empty if it has none.
    pub(crate) fn word(&self, cell: &Cell) -> &str {
        let Row { family, name, .. } = cell.row;
        let place = (family.to_owned(), name.to_owned(), cell.fault.name().to_owned());
        let words = self.0.get(&place).map_or("", String::as_str);
        match (words.split_once("; "), cell.times) {
            (Some((first, _)), Times::First) => first,
            (Some((_, every)), Times::Every) => every,
            (None, _) => words,
        }
    }
}

/// What stands before the tables, the tables, and what stands behind them.
fn parts() -> (String, String, String) {
    let page = fs::read_to_string(page()).unwrap();
    let (before, rest) = page.split_once(BEGINS).unwrap();
    let (known, after) = rest.split_once(ENDS).unwrap();
    (before.to_owned(), known.to_owned(), after.to_owned())
}

/// A method as a link.
fn linked(call: &str) -> String {
    match call.split_once("::") {
        Some((_, method)) => format!("[`{method}`](crate::{call})"),
        None => call.to_owned(),
    }
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/faults.md")
}
