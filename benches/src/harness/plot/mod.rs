//! The plots: lines where a workload has several sizes, and horizontal bars elsewhere.

pub(crate) mod bars;
pub(crate) mod lines;

use std::fs;
use std::io;
use std::path::Path;

use crate::harness::figures::Subject;
use crate::harness::figures::{Case, Figures};
use crate::harness::plot::bars::{Bar, Group};
use crate::harness::plot::lines::Line;
use crate::harness::workload::{Measure, Workload};

/// The colour of what is ours.
const OURS: &str = "#c2410c";

/// Writes a file for each workload, or for each measure of a workload with several sizes.
pub(crate) fn write_plots<S: Subject>(
    folder: &Path,
    prefix: &str,
    size_title: &str,
    workloads: &[Workload<S>],
    figures: &Figures<S>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for workload in workloads {
        let measures = workload.measures.iter().filter(|measure| measure.is_plotted);
        if let [size] = workload.sizes[..] {
            let groups: Vec<Group> = measures
                .map(|measure| group(workload, measure, size, figures))
                .filter(|group| !group.bars.is_empty())
                .collect();
            if !groups.is_empty() {
                let file = format!("{prefix}{}.svg", workload.name);
                fs::write(folder.join(file), bars::draw(&groups))?;
            }
            continue;
        }
        for measure in measures {
            let lines = lines(workload, measure, figures);
            if let Some(text) = lines::draw(&measure.title, measure.unit, size_title, &lines) {
                let file = format!("{prefix}{}-{}.svg", workload.name, measure.name);
                fs::write(folder.join(file), text)?;
            }
        }
    }
    Ok(())
}

fn lines<S: Subject>(
    workload: &Workload<S>,
    measure: &Measure<S>,
    figures: &Figures<S>,
) -> Vec<Line> {
    let line = |&subject: &S| {
        let point = |&size: &usize| {
            let median = figures.median(Case { subject, size }, workload.name, measure.name)?;
            let across = u32::try_from(size).ok().filter(|_| size >= measure.least_size)?;
            // The axes are logarithmic.
            (median > 0.0).then_some((f64::from(across), median))
        };
        let points = workload.sizes.iter().filter_map(point).collect();
        Line { name: subject.name(), is_ours: subject.is_ours(), points }
    };
    workload.subjects.iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn group<S: Subject>(
    workload: &Workload<S>,
    measure: &Measure<S>,
    size: usize,
    figures: &Figures<S>,
) -> Group {
    let bar = |&subject: &S| {
        let value = figures.median(Case { subject, size }, workload.name, measure.name)?;
        Some(Bar { name: subject.name(), is_ours: subject.is_ours(), value })
    };
    Group {
        title: measure.title.clone(),
        unit: measure.unit.to_owned(),
        bars: workload.subjects.iter().filter_map(bar).collect(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A drawing of this size as the text of a file.
fn svg(width: f64, height: f64, body: &[String]) -> String {
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="14">
<rect width="100%" height="100%" fill="#ffffff"/>
{}
</svg>
"##,
        body.join("\n")
    )
}

/// The title of a plot or of a group, at a height.
fn heading(title: &str, unit: &str, y: f64) -> String {
    let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
    let title = escape(title);
    format!(
        r##"<text x="16" y="{y:.0}" font-size="16" font-weight="bold" fill="#1a1a1a">{title}{unit}</text>"##
    )
}
