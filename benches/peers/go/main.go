// One client process of the comparison, for the lock libraries of Go. benches/README.md describes its
// arguments and rows.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"sort"
	"strings"
	"time"
)

// Lock is one waiter's handle of the contended lock.
type Lock interface {
	// Acquire returns when this waiter holds the lock. After an error it is called again.
	Acquire() error
	Release() error
}

// A Peer is a library with its settings.
type Peer struct {
	// The modules whose versions are printed with the results.
	modules []string
	// Connects the process. The returned function creates the lock of one waiter.
	connect func(url, name string) (func() (Lock, error), error)
}

var peers = map[string]Peer{
	"etcd":              {[]string{"go.etcd.io/etcd/client/v3"}, connectEtcd},
	"postgres":          {[]string{"github.com/jackc/pgx/v5"}, connectPostgres},
	"redislock":         {[]string{"github.com/bsm/redislock", "github.com/redis/go-redis/v9"}, redislockDefault},
	"redislock-tuned":   {[]string{"github.com/bsm/redislock", "github.com/redis/go-redis/v9"}, redislockTuned},
	"redsync":           {[]string{"github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9"}, redsyncDefault},
	"redsync-tuned":     {[]string{"github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9"}, redsyncTuned},
	"rueidislock":       {[]string{"github.com/redis/rueidis"}, rueidislockDefault},
	"rueidislock-tuned": {[]string{"github.com/redis/rueidis"}, rueidislockTuned},
}

func main() {
	log.SetFlags(0)
	var (
		name    = flag.String("peer", "", "library, one of "+strings.Join(names(), ", "))
		url     = flag.String("url", "", "server")
		lock    = flag.String("name", "", "lock")
		waiters = flag.Int("waiters", 0, "goroutines that take it")
		holdUs  = flag.Int("hold-us", 0, "time for which it is held, in µs")
		id      = flag.String("id", "", "name of this process, first part of its waiters' names")
		start   = flag.Int64("start", 0, "first time to ask, in ns of CLOCK_MONOTONIC")
		end     = flag.Int64("end", 0, "end, in ns of CLOCK_MONOTONIC")
		out     = flag.String("out", "", "file for the rows")
		version = flag.Bool("version", false, "only print what the library is")
	)
	flag.Parse()
	peer, known := peers[*name]
	if !known {
		log.Fatalf("no such peer: %q", *name)
	}
	if *version {
		fmt.Println(versions(peer.modules))
		return
	}

	newLock, err := peer.connect(*url, *lock)
	if err != nil {
		log.Fatalf("%s does not connect: %v", *name, err)
	}
	plan := plan{start: *start, end: *end, hold: time.Duration(*holdUs) * time.Microsecond}
	diaries := make([]*diary, *waiters)
	for i := range diaries {
		lock, err := newLock()
		if err != nil {
			log.Fatalf("waiter %d does not connect: %v", i, err)
		}
		diaries[i] = &diary{}
		go plan.run(lock, diaries[i])
	}
	if late := monotonic() - *start; late > 0 {
		log.Printf("ready %d ms too late", late/1e6)
	}
	sleepUntil(*end)

	if err := write(*out, *id, *end, diaries); err != nil {
		log.Fatal(err)
	}
	// The process ends without cleaning up on the server, while the waiters still run.
	os.Exit(0)
}

// write writes the rows of all waiters, without anything that happened after the end.
func write(path, id string, end int64, diaries []*diary) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	rows := bufio.NewWriter(file)
	for waiter, diary := range diaries {
		for _, row := range diary.upTo(end) {
			fmt.Fprintf(rows, "%s:%d,%d,%s,%s\n", id, waiter, row.asked, orEmpty(row.granted), orEmpty(row.released))
		}
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	return file.Close()
}

func orEmpty(ns int64) string {
	if ns == 0 {
		return ""
	}
	return fmt.Sprint(ns)
}

func names() []string {
	all := make([]string, 0, len(peers))
	for name := range peers {
		all = append(all, name)
	}
	sort.Strings(all)
	return all
}

// versions lists the versions of these modules in this program.
func versions(modules []string) string {
	built := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			built[module.Path] = strings.TrimPrefix(module.Version, "v")
		}
	}
	var told []string
	for _, module := range modules {
		told = append(told, strings.TrimPrefix(module, "github.com/")+" "+built[module])
	}
	return strings.Join(told, ", ")
}
