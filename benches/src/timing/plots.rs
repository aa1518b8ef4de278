//! The plots: one file for each row, with a group of bars for each measure.

use std::fs;
use std::io;
use std::path::Path;

use crate::figures::Figures;
use crate::plot::{Bar, Group, draw};
use crate::timing::contestant::Contestant;
use crate::timing::measure::{Measure, Workload};

/// Writes a file for each row that was measured into a folder.
pub(crate) fn write_plots(
    folder: &Path,
    workloads: &[Workload],
    figures: &Figures<Contestant>,
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

fn group(workload: &Workload, measure: &Measure, figures: &Figures<Contestant>) -> Group {
    let bar = |&contestant: &Contestant| {
        let summary = figures.summary(contestant, workload.name, measure.name)?;
        let (name, ours) = (contestant.name(), contestant.is_ours());
        Some(Bar { name, ours, value: summary.median })
    };
    Group {
        title: measure.title.to_owned(),
        unit: measure.unit,
        bars: workload.contestants.iter().filter_map(bar).collect(),
    }
}
