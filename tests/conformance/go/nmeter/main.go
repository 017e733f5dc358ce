// Command nmeter prints the time of day with milliseconds, again and again: what specs use of
// busybox's applet of this name, which Debian's busybox lacks. `-d N` waits N milliseconds
// between two lines (1000 by default); with a negative one there is one line only.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	pause := 1000
	for number, word := range os.Args[1:] {
		given, isPause := strings.CutPrefix(word, "-d")
		if !isPause {
			continue
		}
		if given == "" && number+2 < len(os.Args) {
			given = os.Args[number+2]
		}
		if milliseconds, err := strconv.Atoi(given); err == nil {
			pause = milliseconds
		}
	}
	for {
		fmt.Println(time.Now().UTC().Format("15:04:05.000"))
		if pause < 0 {
			return
		}
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
}
