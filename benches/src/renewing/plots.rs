//! The plots: lines where there are several numbers of locks, and horizontal bars where there is one.

use std::fs;
use std::io;
use std::path::Path;

use crate::figures::Figures;
use crate::line_plot::{self, Line};
use crate::plot::{self, Bar, Group};
use crate::renewing::contestant::Case;
use crate::renewing::measure::{Measure, Workload};

/// Measures that are drawn by the number of locks.
const DRAWN: [&str; 7] =
    ["client-each", "percent", "server-each", "server-percent", "memory", "rate", "sweep"];

/// Writes a file for each measure by the number of locks, and one for each workload with a single number of them.
pub(crate) fn write_plots(
    folder: &Path,
    workloads: &[Workload],
    figures: &Figures<Case>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for workload in workloads {
        if let [held] = workload.held[..] {
            let groups: Vec<Group> = workload
                .measures
                .iter()
                .map(|measure| group(workload, measure, held, figures))
                .filter(|group| !group.bars.is_empty())
                .collect();
            if !groups.is_empty() {
                let file = folder.join(format!("renewal-{}.svg", workload.name));
                fs::write(file, plot::draw(&groups))?;
            }
            continue;
        }
        for measure in workload.measures.iter().filter(|measure| DRAWN.contains(&measure.name)) {
            let lines = lines(workload, measure, figures);
            if let Some(text) = line_plot::draw(measure.title, measure.unit, "locks held", &lines) {
                let file = format!("renewal-{}-{}.svg", workload.name, measure.name);
                fs::write(folder.join(file), text)?;
            }
        }
    }
    Ok(())
}

fn lines(workload: &Workload, measure: &Measure, figures: &Figures<Case>) -> Vec<Line> {
    let line = |&keeper| {
        let point = |&held: &usize| {
            let summary = figures.summary(Case { keeper, held }, workload.name, measure.name)?;
            let held = u32::try_from(held).ok().filter(|_| held >= measure.least_held)?;
            (summary.median > 0.0).then_some((f64::from(held), summary.median))
        };
        let points = workload.held.iter().filter_map(point).collect();
        Line { name: keeper.name().to_owned(), ours: keeper.is_ours(), points }
    };
    workload.keepers.iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn group(workload: &Workload, measure: &Measure, held: usize, figures: &Figures<Case>) -> Group {
    let bar = |&keeper| {
        let summary = figures.summary(Case { keeper, held }, workload.name, measure.name)?;
        Some(Bar { name: keeper.name().to_owned(), ours: keeper.is_ours(), value: summary.median })
    };
    Group {
        title: measure.title.to_owned(),
        unit: measure.unit,
        bars: workload.keepers.iter().filter_map(bar).collect(),
    }
}
