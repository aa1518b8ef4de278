//! `wheellock graph`: who waits for whom.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use wheellock::crossbeam_channel::never;
use wheellock::{LongWaiter, WaitGraph};

use crate::arguments::{Format, Graph};
use crate::exit;
use crate::output::{is_broken_pipe, printable, say, shown};
use crate::server;
use crate::watch::end_with_the_reader;

/// Prints the graph, and returns the exit code.
pub(crate) fn graph(graph: &Graph) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&graph.server, None)?;
    if graph.watch {
        end_with_the_reader()?;
    }
    loop {
        let found = client.wait_graph(&graph.pattern)?;
        let text = match graph.format {
            Format::Text => text(&found),
            Format::Dot => dot(&found),
            Format::Mermaid => mermaid(&found),
            Format::Json => serde_json::to_string(&found)?,
        };
        let code = if found.cycles.is_empty() { exit::SUCCESS } else { exit::DEADLOCK };
        match say(&text) {
            Err(error) if graph.watch && is_broken_pipe(&error) => return Ok(code),
            said => said?,
        }
        if !graph.watch {
            return Ok(code);
        }
        // The channel never gets a message, so this is a pause.
        never::<()>().recv_timeout(graph.interval).ok();
    }
}

/// Formats the client and the thread of a wait.
fn waiter(wait: &LongWaiter) -> String {
    let client = wait.label.as_deref().unwrap_or(&wait.client);
    let thread = if wait.thread.is_empty() { wait.number.to_string() } else { wait.thread.clone() };
    format!("{}, {}", shown(client), shown(&thread))
}

/// Formats a line for each lock with waiters, for each waiter, and for each cycle.
fn text(graph: &WaitGraph) -> String {
    let mut lines = Vec::new();
    let mut waits_for: BTreeMap<&str, Vec<&LongWaiter>> = BTreeMap::new();
    for wait in &graph.waits {
        waits_for.entry(&wait.lock).or_default().push(wait);
    }
    for status in &graph.locks {
        let waits = waits_for.remove(status.name.as_str());
        if waits.is_some() || status.waiters.elsewhere.unwrap_or(0) > 0 {
            lines.push(crate::report::line(status));
            lines.extend(waits.into_iter().flatten().map(wait_line));
        }
    }
    // Locks outside the pattern, for which a holder of a matching lock waits.
    for (name, waits) in waits_for {
        lines.push(format!("{}:", shown(name)));
        lines.extend(waits.into_iter().map(wait_line));
    }
    let cycles = graph.cycles.iter();
    lines.extend(cycles.map(|cycle| format!("deadlock: {}", printable(&cycle.description))));
    if lines.is_empty() {
        lines.push("nobody has waited for more than a second".to_owned());
    }
    if !graph.is_complete {
        lines.push(
            "not all locks and clients could be read: see the limits and the user's permissions"
                .to_owned(),
        );
    }
    lines.join("\n")
}

/// Formats a wait, with the locks held by the thread.
fn wait_line(wait: &LongWaiter) -> String {
    let mut line = format!("  waits: {}", waiter(wait));
    if !wait.holds.is_empty() {
        let holds: Vec<String> = wait.holds.iter().map(|name| shown(name)).collect();
        // Writing to a `String` never fails.
        write!(line, ", holds {}", holds.join(", ")).ok();
    }
    if wait.waits_for.iter().any(|edge| edge.is_possible) {
        line.push_str(", perhaps for a thread that waits too");
    }
    line
}

/// An edge of the drawn graph, from a wait to a lock or from a lock to a wait.
struct Edge {
    from: String,
    to: String,
    label: &'static str,
    is_possible: bool,
    is_in_cycle: bool,
}

/// Edges from each wait to the lock, and from the lock to each waiting holder, without duplicates.
/// A node is `w` with the index of a wait, or `l` with the index of a lock in [`locks`].
fn edges(graph: &WaitGraph) -> Vec<Edge> {
    let (mut edges, locks) = (Vec::new(), locks(graph));
    for (at, wait) in graph.waits.iter().enumerate() {
        let lock = format!("l{}", locks.binary_search(&wait.lock.as_str()).unwrap_or_default());
        edges.push(Edge {
            from: format!("w{at}"),
            to: lock.clone(),
            label: "waits for",
            is_possible: false,
            is_in_cycle: graph.cycles.iter().any(|cycle| cycle.waits.contains(&at)),
        });
        for edge in &wait.waits_for {
            for holder in &edge.waits {
                let follows = |cycle: &Vec<usize>| {
                    let next = cycle.iter().cycle().skip(1);
                    cycle.iter().zip(next).any(|pair| pair == (&at, holder))
                };
                edges.push(Edge {
                    from: lock.clone(),
                    to: format!("w{holder}"),
                    label: if edge.is_possible { "perhaps held by" } else { "held by" },
                    is_possible: edge.is_possible,
                    is_in_cycle: graph.cycles.iter().any(|cycle| follows(&cycle.waits)),
                });
            }
        }
    }
    edges.sort_by(|one, other| (&one.from, &one.to).cmp(&(&other.from, &other.to)));
    edges.dedup_by(|one, other| {
        other.is_in_cycle |= one.is_in_cycle && (&one.from, &one.to) == (&other.from, &other.to);
        (&one.from, &one.to) == (&other.from, &other.to)
    });
    edges
}

/// The names of all locks with waits, sorted and without duplicates.
fn locks(graph: &WaitGraph) -> Vec<&str> {
    let mut names: Vec<&str> = graph.waits.iter().map(|wait| wait.lock.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Formats the graph for Graphviz.
fn dot(graph: &WaitGraph) -> String {
    // Graphviz escapes quotes and backslashes as JSON does.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut lines = vec!["digraph waits {".to_owned()];
    for (at, name) in locks(graph).into_iter().enumerate() {
        lines.push(format!("  l{at} [shape=box label={}]", quoted(&shown(name))));
    }
    for (at, wait) in graph.waits.iter().enumerate() {
        lines.push(format!("  w{at} [label={}]", quoted(&waiter(wait))));
    }
    for Edge { from, to, label, is_possible, is_in_cycle } in edges(graph) {
        let style = if is_possible { " style=dashed" } else { "" };
        let color = if is_in_cycle { " color=red" } else { "" };
        lines.push(format!("  {from} -> {to} [label={}{style}{color}]", quoted(label)));
    }
    lines.push("}".to_owned());
    lines.join("\n")
}

/// Formats the graph as a Mermaid flowchart.
fn mermaid(graph: &WaitGraph) -> String {
    let quoted = |text: &str| {
        let is_harmless = |letter: char| letter.is_alphanumeric() || " ,.:-_/".contains(letter);
        let escape = |letter: char| match letter {
            letter if is_harmless(letter) => letter.to_string(),
            letter => format!("#{};", u32::from(letter)),
        };
        format!("\"{}\"", text.chars().map(escape).collect::<String>())
    };
    let mut lines = vec!["flowchart LR".to_owned()];
    for (at, name) in locks(graph).into_iter().enumerate() {
        lines.push(format!("  l{at}[{}]", quoted(&shown(name))));
    }
    for (at, wait) in graph.waits.iter().enumerate() {
        lines.push(format!("  w{at}([{}])", quoted(&waiter(wait))));
    }
    let mut in_cycle = Vec::new();
    for (at, Edge { from, to, label, is_possible, is_in_cycle }) in
        edges(graph).into_iter().enumerate()
    {
        let arrow = if is_possible { "-.->" } else { "-->" };
        lines.push(format!("  {from} {arrow}|{label}| {to}"));
        if is_in_cycle {
            in_cycle.push(at.to_string());
        }
    }
    if !in_cycle.is_empty() {
        lines.push(format!("  linkStyle {} stroke:red", in_cycle.join(",")));
    }
    lines.join("\n")
}
