// Judges histories of registers by porcupine: go run . FILE...
package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// An operation. An unknown one has no reply: it has happened at some time, or never.
type operation struct {
	f        string
	old, new int
	unknown  bool
}

// A register with compare-and-set. Its state is a number.
var model = porcupine.Model{
	Init: func() interface{} { return -1 },
	Step: func(state, _, output interface{}) (bool, interface{}) {
		value, done := state.(int), output.(operation)
		switch {
		case done.f == "read":
			return value == done.new, value
		case done.f == "write" || value == done.old:
			return true, done.new
		default:
			return done.unknown, value
		}
	},
}

var line = regexp.MustCompile(
	`^\{:process (\d+), :type :(\w+), :f :(\w+), :value (?:nil|(\d+)|\[(\d+) (\d+)\])\}$`)

// The events of a file. What failed has not happened, and a read without a reply says nothing. All
// others without a reply end after everything else.
func read(text string) []porcupine.Event {
	type invocation struct {
		place int
		operation
	}
	pending := map[string]invocation{}
	var events []*porcupine.Event
	add := func(kind porcupine.EventKind, id int, value operation) {
		events = append(events, &porcupine.Event{Kind: kind, Id: id, Value: value})
	}
	for _, text := range strings.Split(strings.TrimSpace(text), "\n") {
		found := line.FindStringSubmatch(text)
		if found == nil {
			panic("this is no event: " + text)
		}
		process, kind := found[1], found[2]
		number := func(text string) int { value, _ := strconv.Atoi(text); return value }
		value := operation{f: found[3], old: number(found[5]), new: number(found[4] + found[6])}
		start := pending[process]
		switch kind {
		case "invoke":
			pending[process] = invocation{len(events), value}
			add(porcupine.CallEvent, len(events), value)
		case "ok":
			delete(pending, process)
			add(porcupine.ReturnEvent, start.place, value)
		case "fail":
			delete(pending, process)
			events[start.place] = nil
		}
	}
	for _, start := range pending {
		if start.f == "read" {
			events[start.place] = nil
			continue
		}
		start.unknown = true
		add(porcupine.ReturnEvent, start.place, start.operation)
	}
	var kept []porcupine.Event
	for _, event := range events {
		if event != nil {
			kept = append(kept, *event)
		}
	}
	return kept
}

func main() {
	code := 0
	for _, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		result := porcupine.CheckEventsTimeout(model, read(string(text)), time.Minute)
		if result != porcupine.Ok {
			fmt.Println(path, result)
			code = 1
		}
	}
	fmt.Println(len(os.Args)-1, "histories were judged")
	os.Exit(code)
}
