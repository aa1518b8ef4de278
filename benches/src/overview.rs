//! The plot of the front page, drawn from the table "Overview" in `README.md`.

use std::fs;
use std::io;
use std::path::Path;

use crate::harness::plot::bars::{Bar, Group, draw};

const HEADING: &str = "### Overview";
/// How the names of what is ours begin.
const OURS: [&str; 3] = ["wheellock", "BatchTimer", "HashedWheelTimer"];

/// Draws `plots/overview.svg`, and returns its path.
///
/// # Errors
///
/// If `README.md` cannot be read, if its table is missing or a row of it is not understood, or if
/// the plot cannot be written.
pub fn overview() -> io::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(folder.join("README.md"))?;
    let path = folder.join("plots").join("overview.svg");
    fs::write(&path, draw(&groups(&readme)?))?;
    Ok(path.display().to_string())
}

/// The rows `| group | name | number unit | .. |` below the heading. A group is named in each of
/// its rows.
fn groups(readme: &str) -> io::Result<Vec<Group>> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let lines = readme.lines().skip_while(|line| *line != HEADING);
    let table =
        lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut groups: Vec<Group> = Vec::new();
    for line in table.skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let row = |[title, name, figure]: [&str; 3]| {
            let (value, unit) = figure.split_once(' ')?;
            let value = value.replace(',', "").parse().ok()?;
            Some((title.to_owned(), name.to_owned(), value, unit.to_owned()))
        };
        let row = cells.first_chunk().and_then(|cells| row(*cells));
        let (title, name, value, unit) = row.ok_or_else(|| {
            invalid(&format!("README.md: a row of the overview is wrong: {line}"))
        })?;
        let is_ours = OURS.iter().any(|ours| name.starts_with(ours));
        let bar = Bar { name, is_ours, value };
        match groups.last_mut().filter(|group| group.title == title) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { title, unit, bars: vec![bar] }),
        }
    }
    if groups.is_empty() {
        return Err(invalid("README.md has no table below the heading \"Overview\""));
    }
    Ok(groups)
}
