//! A plot of horizontal bars as SVG, with a group of them for each measure.

use crate::harness::figures::number;
use crate::harness::plot::{OURS, escape, heading, svg};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 312.0;
const THICKNESS: f64 = 20.0;
const STEP: f64 = 28.0;
const HEADING: f64 = 38.0;
/// Room for the value to the right of the longest bar.
const RIGHT: f64 = 130.0;

/// A group of bars.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) bars: Vec<Bar>,
}

/// One subject's figure.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// Ours have a colour of their own.
    pub(crate) is_ours: bool,
    pub(crate) value: f64,
}

/// The text of a file.
pub(crate) fn draw(groups: &[Group]) -> String {
    let mut body = Vec::new();
    let mut top = 16.0;
    for group in groups {
        top = draw_group(group, top, &mut body);
    }
    svg(WIDTH, top, &body)
}

/// Returns where the next group begins.
fn draw_group(group: &Group, top: f64, body: &mut Vec<String>) -> f64 {
    // Beyond four times the median a bar is cut, or the others would be no more than lines.
    let mut sorted: Vec<f64> = group.bars.iter().map(|bar| bar.value).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let most = sorted.last().copied().unwrap_or(0.0);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(most);
    let scale = if middle > 0.0 { most.min(4.0 * middle) } else { most };
    body.push(heading(&group.title, &group.unit, top + 20.0));
    let mut y = top + HEADING;
    for Bar { name, is_ours, value } in &group.bars {
        let part = if scale > 0.0 { (value / scale).min(1.0) } else { 0.0 };
        let length = (part * (WIDTH - LEFT - RIGHT)).max(1.0);
        let (fill, weight) = if *is_ours { (OURS, "bold") } else { ("#94a3b8", "normal") };
        let (text, name) = (y + 15.0, escape(name));
        let arrow = if *value > scale { "→ " } else { "" };
        let label = format!("{arrow}{} {}", number(*value), group.unit);
        body.push(format!(
            r##"<text x="{:.0}" y="{text:.0}" text-anchor="end" font-weight="{weight}" fill="#1a1a1a">{name}</text>"##,
            LEFT - 10.0,
        ));
        body.push(format!(
            r#"<rect x="{LEFT}" y="{y:.0}" width="{length:.1}" height="{THICKNESS}" fill="{fill}"/>"#
        ));
        body.push(format!(
            r##"<text x="{:.0}" y="{text:.0}" font-weight="{weight}" fill="#1a1a1a">{label}</text>"##,
            LEFT + length + 8.0
        ));
        y += STEP;
    }
    if most > scale {
        body.push(format!(
            r##"<text x="{LEFT}" y="{:.0}" font-size="12" fill="#525252">→ this bar is cut: it stands for more than its length</text>"##,
            y + 10.0
        ));
        y += 18.0;
    }
    y + 14.0
}
