// Command interop checks a cluster with the Go client of Apache RocketMQ.
//
//	interop NAMESRV BROKER PREFIX LOGDIR json|binary
//	interop agent NAMESRV NAME LOGDIR json|binary
//
// The second form does what it is told on stdin (agent.go). Of the first:
//
// One line a check: "ok NAME" or "FAIL NAME: why"; "done" at the very end. A line "sent TOPIC KEY OFFSET_ID BODY" names a
// message for others to look for, since this client has no call to query one. What the client itself logs from warnings up
// goes to LOGDIR, to a file a phase: working.log, leaving.log, closing.log.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The client writes JSON headers unless this variable of its own says otherwise; it offers no option for it.
//
//go:linkname codecType github.com/apache/rocketmq-client-go/v2/internal/remote.codecType
var codecType byte

func main() {
	if len(os.Args) < 6 {
		fmt.Fprintln(os.Stderr, "usage: interop NAMESRV BROKER PREFIX LOGDIR json|binary")
		os.Exit(2)
	}
	if os.Args[5] == "binary" {
		codecType = 1
	}
	rlog.SetLogLevel("warn")
	if os.Args[1] == "agent" {
		if err := rlog.SetOutputPath(filepath.Join(os.Args[4], "leaving.log")); err != nil { // its clients come and go
			panic(err)
		}
		runAgent(os.Args[2], os.Args[3])
		return
	}
	logTo := func(phase string) {
		if err := rlog.SetOutputPath(filepath.Join(os.Args[4], phase+".log")); err != nil {
			panic(err)
		}
	}

	logTo("working")
	c, err := connect(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Println("FAIL connect:", err)
		return
	}
	sideBySide(c.adminChecks, c.sendChecks, c.consumeChecks, c.slowChecks)
	logTo("leaving")
	sideBySide(c.joinAndLeave, c.restart)
	logTo("closing")
	c.close()
	fmt.Println("done")
}

func sideBySide(suites ...func()) {
	var all sync.WaitGroup
	for _, suite := range suites {
		all.Add(1)
		go func() {
			defer all.Done()
			suite()
		}()
	}
	all.Wait()
}

var output sync.Mutex

// check runs one check and prints its line.
func check(name string, body func() error) {
	err := func() (err error) {
		defer func() {
			if problem := recover(); problem != nil {
				err = fmt.Errorf("panic: %v", problem)
			}
		}()
		return body()
	}()
	output.Lock()
	defer output.Unlock()
	if err != nil {
		fmt.Printf("FAIL %s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	fmt.Println("ok", name)
}

func same[T comparable](what string, expected, found T) error {
	if expected != found {
		return fmt.Errorf("%s: expected %v, found %v", what, expected, found)
	}
	return nil
}

// patience is for what must come; a machine may be busy with other things. Only what never comes takes so long.
const patience = 240 * time.Second

// await returns as soon as the condition holds, or an error that names it when it never does.
func await(what string, holds func() bool) error {
	return awaitFor(patience, what, holds)
}

func awaitFor(limit time.Duration, what string, holds func() bool) error {
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s still not: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}
