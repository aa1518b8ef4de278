//! A plot of horizontal bars as SVG, with a group of them for each measure.

use std::fmt::Write as _;

use crate::figures::number;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 312.0;
const THICK: f64 = 20.0;
const STEP: f64 = 28.0;
const HEADING: f64 = 46.0;
/// Room for the value to the right of the longest bar.
const RIGHT: f64 = 130.0;

/// A group of bars.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

/// One contestant's figure.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// Ours are drawn in another colour.
    pub(crate) ours: bool,
    pub(crate) value: f64,
}

/// The text of a file.
pub(crate) fn draw(groups: &[Group]) -> String {
    let mut body = String::new();
    let mut top = 16.0;
    for group in groups {
        top = draw_group(group, top, &mut body);
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="14">
<rect width="100%" height="100%" fill="#ffffff"/>
{body}</svg>
"##
    )
}

/// Answers where the next group begins.
fn draw_group(group: &Group, top: f64, body: &mut String) -> f64 {
    let most = group.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let mut shortened = false;
    // Beyond four times the median a bar is cut, or the others would be no more than lines.
    let mut sorted: Vec<f64> = group.bars.iter().map(|bar| bar.value).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(most);
    let scale = if middle > 0.0 { most.min(4.0 * middle) } else { most };
    let mut line = |text: String| {
        body.push_str(&text);
        body.push('\n');
    };
    line(format!(
        r##"<text x="16" y="{:.0}" font-size="16" font-weight="bold" fill="#1a1a1a">{} ({})</text>"##,
        top + 20.0,
        escape(&group.title),
        group.unit
    ));
    let mut y = top + HEADING - 8.0;
    for Bar { name, ours, value } in &group.bars {
        let cut = *value > scale;
        shortened |= cut;
        let part = if scale > 0.0 { (value / scale).min(1.0) } else { 0.0 };
        let length = (part * (WIDTH - LEFT - RIGHT)).max(1.0);
        let (fill, weight) = if *ours { ("#c2410c", "bold") } else { ("#94a3b8", "normal") };
        let text = y + 15.0;
        line(format!(
            r##"<text x="{:.0}" y="{text:.0}" text-anchor="end" font-weight="{weight}" fill="#1a1a1a">{}</text>"##,
            LEFT - 10.0,
            escape(name)
        ));
        line(format!(
            r#"<rect x="{LEFT}" y="{y:.0}" width="{length:.1}" height="{THICK}" fill="{fill}"/>"#
        ));
        let mut label = String::new();
        // Writing to a string does not fail.
        write!(label, "{}{} {}", if cut { "→ " } else { "" }, number(*value), group.unit).ok();
        line(format!(
            r##"<text x="{:.0}" y="{text:.0}" font-weight="{weight}" fill="#1a1a1a">{label}</text>"##,
            LEFT + length + 8.0
        ));
        y += STEP;
    }
    if shortened {
        line(format!(
            r##"<text x="{LEFT}" y="{:.0}" font-size="12" fill="#525252">→ the bar is cut: its length says less than its number</text>"##,
            y + 10.0
        ));
        y += 18.0;
    }
    y + 14.0
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
