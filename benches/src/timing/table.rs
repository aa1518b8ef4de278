//! The tables: each measure with all contestants, and at the end every bar with what was reached.

use std::fmt::Write;

use crate::figures::{Figures, Summary, number};
use crate::timing::contestant::{Contestant, Timer};
use crate::timing::measure::{Bar, Limit, Measure, NETTY, Workload};

/// One bar, and what was reached.
#[derive(Debug)]
pub(crate) struct Verdict {
    row: &'static str,
    title: &'static str,
    whose: String,
    figure: String,
    netty: String,
    bar: String,
    /// The figure in parts of the bar; above one it is missed. For a bar that is a least, the other way round.
    part: f64,
    met: bool,
    /// The same against Netty with as many buckets, for a bar that says so many times Netty's.
    met_at_same_size: Option<bool>,
}

/// A measure with all its contestants, in Markdown. None if nobody was measured.
pub(crate) fn measure_table(
    workload: &Workload,
    measure: &Measure,
    figures: &Figures<Contestant>,
) -> Option<String> {
    let mut text = format!(
        "### {}. {} ({})\n\n| | median | least | most | to Netty 512 | to Netty 65,536 |\n|---|---:|---:|---:|---:|---:|\n",
        measure.row, measure.title, measure.unit
    );
    let mut any = false;
    for &contestant in &workload.contestants {
        let Some(summary) = figures.summary(contestant, workload.name, measure.name) else {
            continue;
        };
        any = true;
        let [few, many] = NETTY.map(|netty| {
            ratio_to(netty, summary, workload, measure, figures)
                .map_or_else(String::new, |ratio| format!("{ratio:.3}"))
        });
        let name = if contestant.is_ours() {
            format!("**{}**", contestant.name())
        } else {
            contestant.name()
        };
        // Writing to a string does not fail.
        writeln!(
            text,
            "| {name} | {} | {} | {} | {few} | {many} |",
            number(summary.median),
            number(summary.least),
            number(summary.most),
        )
        .ok();
    }
    any.then_some(text)
}

/// What became of the bars of a measure.
pub(crate) fn verdicts(
    workload: &Workload,
    measure: &Measure,
    figures: &Figures<Contestant>,
) -> Vec<Verdict> {
    let judge = |bar: &Bar| judge(*bar, workload, measure, figures);
    measure.bars.iter().filter_map(judge).collect()
}

/// All bars, in Markdown.
pub(crate) fn bar_table(verdicts: &[Verdict]) -> String {
    let mut text = "| row | workload | timer | figure | to Netty 512; 65,536 | bar | of the bar | | to Netty of the same size |\n|---|---|---|---:|---|---|---:|---|---|\n".to_owned();
    for verdict in verdicts {
        let Verdict { row, title, whose, figure, netty, bar, part, met, met_at_same_size } =
            verdict;
        let word = |met| if met { "met" } else { "**missed**" };
        let (met, same) = (word(*met), met_at_same_size.map_or("", word));
        // Writing to a string does not fail.
        writeln!(
            text,
            "| {row} | {title} | {whose} | {figure} | {netty} | {bar} | {part:.2} | {met} | {same} |"
        )
        .ok();
    }
    text
}

fn judge(
    bar: Bar,
    workload: &Workload,
    measure: &Measure,
    figures: &Figures<Contestant>,
) -> Option<Verdict> {
    let own = figures.summary(bar.whose, workload.name, measure.name)?;
    let of = |contestant: Contestant| {
        figures.summary(contestant, workload.name, measure.name).map(|summary| summary.median)
    };
    let netty = NETTY.into_iter().filter_map(of).min_by(f64::total_cmp);
    let same = NETTY.into_iter().find(|netty| netty.buckets == bar.whose.buckets).and_then(of);
    let met_at_same_size = match bar.limit {
        Limit::TimesNetty(times) => same.map(|same| own.median <= times * same),
        _ => None,
    };
    let unit = measure.unit;
    let (limit, text) = match bar.limit {
        Limit::AtMost(limit) | Limit::AtLeast(limit) => (limit, String::new()),
        Limit::TimesNetty(times) => (times * netty?, format!(" = {times} x Netty's better")),
        Limit::Times(times, other) => {
            (times * of(other)?, format!(" = {times} x {}", other.name()))
        }
        Limit::TimesItself(times, other) => {
            let itself = figures.summary(bar.whose, other, measure.name)?;
            (times * itself.median, format!(" = {times} x itself in {other}"))
        }
        Limit::AtMostOrTimesNetty(limit, times) => match netty {
            Some(netty) if times * netty > limit => {
                (times * netty, format!(" = {times} x Netty's better"))
            }
            _ => (limit, String::new()),
        },
    };
    let least = matches!(bar.limit, Limit::AtLeast(_));
    let part = match (least, limit > 0.0) {
        (true, _) => limit / own.median,
        (false, true) => own.median / limit,
        (false, false) => own.median,
    };
    let word = if least { "at least" } else { "at most" };
    let ratios = NETTY.map(|netty| {
        ratio_to(netty, own, workload, measure, figures)
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
    });
    Some(Verdict {
        row: measure.row,
        title: measure.title,
        whose: bar.whose.name(),
        figure: format!("{} {unit}", number(own.median)),
        netty: ratios.join("; "),
        bar: format!("{word} {} {unit}{text}", number(limit)),
        part,
        met: if least { own.median >= limit } else { own.median <= limit },
        met_at_same_size,
    })
}

fn ratio_to(
    netty: Contestant,
    own: Summary,
    workload: &Workload,
    measure: &Measure,
    figures: &Figures<Contestant>,
) -> Option<f64> {
    debug_assert_eq!(netty.timer, Timer::Netty, "it is what others are compared with");
    let netty = figures.summary(netty, workload.name, measure.name)?;
    (netty.median != 0.0).then(|| own.median / netty.median)
}
