//! The plots: one SVG for each row, with a group of horizontal bars for each measure.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::timing::contestant::Contestant;
use crate::timing::figures::Figures;
use crate::timing::measure::{Measure, Workload};
use crate::timing::table::number;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 312.0;
const BAR: f64 = 20.0;
const STEP: f64 = 28.0;
const HEADING: f64 = 46.0;
/// Room for the value to the right of the longest bar.
const RIGHT: f64 = 130.0;

/// A group of bars.
#[derive(Debug)]
struct Group {
    title: String,
    unit: &'static str,
    bars: Vec<(Contestant, f64)>,
}

/// Writes a file for each row that was measured into a folder.
pub(crate) fn write_plots(
    folder: &Path,
    workloads: &[Workload],
    figures: &Figures,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for workload in workloads {
        let groups: Vec<Group> = workload
            .measures
            .iter()
            .map(|measure| group(workload, measure, figures))
            .filter(|group| !group.bars.is_empty())
            .collect();
        if !groups.is_empty() && workload.name != "floors" {
            fs::write(folder.join(format!("{}.svg", workload.name)), draw(&groups))?;
        }
    }
    Ok(())
}

fn group(workload: &Workload, measure: &Measure, figures: &Figures) -> Group {
    let bar = |&contestant| {
        let summary = figures.summary(contestant, workload.name, measure.name)?;
        Some((contestant, summary.median))
    };
    Group {
        title: measure.title.to_owned(),
        unit: measure.unit,
        bars: workload.contestants.iter().filter_map(bar).collect(),
    }
}

fn draw(groups: &[Group]) -> String {
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
    let most = group.bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut shortened = false;
    // Beyond four times the median a bar is cut, or the others would be no more than lines.
    let mut sorted: Vec<f64> = group.bars.iter().map(|(_, value)| *value).collect();
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
    for (contestant, value) in &group.bars {
        let cut = *value > scale;
        shortened |= cut;
        let part = if scale > 0.0 { (value / scale).min(1.0) } else { 0.0 };
        let length = (part * (WIDTH - LEFT - RIGHT)).max(1.0);
        let (fill, weight) =
            if contestant.is_ours() { ("#c2410c", "bold") } else { ("#94a3b8", "normal") };
        let text = y + 15.0;
        line(format!(
            r##"<text x="{:.0}" y="{text:.0}" text-anchor="end" font-weight="{weight}" fill="#1a1a1a">{}</text>"##,
            LEFT - 10.0,
            escape(&contestant.name())
        ));
        line(format!(
            r#"<rect x="{LEFT}" y="{y:.0}" width="{length:.1}" height="{BAR}" fill="{fill}"/>"#
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
