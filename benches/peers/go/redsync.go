package main

import (
	"math"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// By default the library gives up after 32 tries, but the waiters of the comparison go on.
var untilHeld = redsync.WithTries(math.MaxInt)

func redsyncDefault(urls, name string) (func() (Lock, error), error) {
	return connectRedsync(urls, name, untilHeld)
}

func redsyncTuned(urls, name string) (func() (Lock, error), error) {
	return connectRedsync(urls, name, untilHeld, redsync.WithRetryDelay(10*time.Millisecond))
}

// The URLs are separated by commas. With more than one, a lock is held on a majority of the servers.
func connectRedsync(urls, name string, options ...redsync.Option) (func() (Lock, error), error) {
	var all []pools.Pool
	for _, url := range strings.Split(urls, ",") {
		server, err := redis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		all = append(all, pool.NewPool(redis.NewClient(server)))
	}
	locks := redsync.New(all...)
	return func() (Lock, error) { return redsyncLock{locks.NewMutex(name, options...)}, nil }, nil
}

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Acquire() error {
	return l.mutex.Lock()
}

func (l redsyncLock) Release() error {
	_, err := l.mutex.Unlock()
	return err
}
