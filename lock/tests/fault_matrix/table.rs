//! The table of outcomes, as it stands in the crate's documentation.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cell::Cell;
use crate::faults::{Fault, Times};
use crate::operations::{self, Row};

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
        for fault in Fault::ALL {
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

    /// The lines in which the page differs from what was found. `write` makes them the same.
    pub(crate) fn compare(&self, write: bool) -> Vec<String> {
        let path = page();
        let page = fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(BEGINS).unwrap();
        let (known, after) = rest.split_once(ENDS).unwrap();
        let found = self.render() + "\n";
        if write {
            fs::write(&path, [before, BEGINS, &found, ENDS, after].concat()).unwrap();
            return Vec::new();
        }
        let mut differences = Vec::new();
        let (known, found): (Vec<&str>, Vec<&str>) =
            (known.lines().collect(), found.lines().collect());
        for place in 0..known.len().max(found.len()) {
            let at = |lines: &[&str]| lines.get(place).copied().unwrap_or_default().to_owned();
            if at(&known) != at(&found) {
                differences.push(format!(
                    "the page says {}\n     it was {}",
                    at(&known),
                    at(&found)
                ));
            }
        }
        differences
    }
}

/// A method as a link.
fn linked(call: &str) -> String {
    match call.split_once("::") {
        Some((_, method)) => format!("[`{method}`](crate::{call})"),
        None => call.to_owned(),
    }
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/faults.md")
}
