package main

import (
	"log"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The pause after an error, so that errors do not become a flood of calls.
const errorPause = 50 * time.Millisecond

// monotonic is the clock that all processes of the machine share, in ns.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		log.Fatal(err)
	}
	return now.Nano()
}

func sleepUntil(ns int64) {
	time.Sleep(time.Duration(ns - monotonic()))
}

// A row is one wait. A time is 0 if the event has not happened.
type row struct{ asked, granted, released int64 }

// A diary has the rows of one waiter so far.
type diary struct {
	sync.Mutex
	rows []row
}

func (d *diary) asked(ns int64) {
	d.Lock()
	defer d.Unlock()
	d.rows = append(d.rows, row{asked: ns})
}

func (d *diary) granted(ns int64) {
	d.Lock()
	defer d.Unlock()
	d.rows[len(d.rows)-1].granted = ns
}

func (d *diary) released(ns int64) {
	d.Lock()
	defer d.Unlock()
	d.rows[len(d.rows)-1].released = ns
}

// upTo returns the rows until then. A later grant does not count.
func (d *diary) upTo(end int64) []row {
	d.Lock()
	defer d.Unlock()
	rows := append([]row(nil), d.rows...)
	if last := len(rows) - 1; last >= 0 && rows[last].granted > end {
		rows[last] = row{asked: rows[last].asked}
	}
	return rows
}

// A plan says what every waiter does.
type plan struct {
	start, end int64
	hold       time.Duration
}

func (p plan) run(lock Lock, diary *diary) {
	sleepUntil(p.start)
	for now := monotonic(); now < p.end; now = monotonic() {
		diary.asked(now)
		// A call that is repeated after an error continues the same wait.
		for err := lock.Acquire(); err != nil; err = lock.Acquire() {
			log.Printf("acquire: %v", err)
			time.Sleep(errorPause)
		}
		diary.granted(monotonic())
		if p.hold > 0 {
			time.Sleep(p.hold)
		}
		diary.released(monotonic())
		if err := lock.Release(); err != nil {
			log.Printf("release: %v", err)
			time.Sleep(errorPause)
		}
	}
}
